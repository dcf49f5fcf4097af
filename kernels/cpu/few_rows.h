// Linear layers with few batch rows, where reading v takes most of the time. Norm, matmul and epilogue share one pass over v
// in the forward; dx, dw, dv and dg share one in the backward.
#pragma once

#include <ATen/Parallel.h>

#include <vector>

#include "row.h"

namespace wnfused {

inline constexpr int64_t kBlock = 4;  // rows of v processed together, so that each load of x is used four times

// dots[r][m] = <v_r, x_m> for R rows of v and M rows of x; with squares also squares[r] = <v_r, v_r>.
template <typename T, int R, int M, bool kSquares>
inline void dot_tile(const T* v, const T* x, int64_t k, acc_t<T> (*dots)[M], acc_t<T>* squares) {
  constexpr int64_t w = kLanes<T>;
  Lane<T> sum[R][M], square[R];
  for (int r = 0; r < R; ++r) {
    square[r] = Lane<T>(0);
    for (int m = 0; m < M; ++m) sum[r][m] = Lane<T>(0);
  }
  const auto step = [&](int64_t i, int64_t count) {
    Lane<T> a[R];
    for (int r = 0; r < R; ++r) {
      a[r] = load_lane(v + r * k + i, count);
      if constexpr (kSquares) square[r] = at::vec::fmadd(a[r], a[r], square[r]);
    }
    for (int m = 0; m < M; ++m) {
      const Lane<T> b = load_lane(x + m * k + i, count);
      for (int r = 0; r < R; ++r) sum[r][m] = at::vec::fmadd(a[r], b, sum[r][m]);
    }
  };
  int64_t i = 0;
  for (; i + w <= k; i += w) step(i, w);
  if (i < k) step(i, k - i);
  for (int r = 0; r < R; ++r) {
    if constexpr (kSquares) squares[r] = sum_lanes<T>(square[r]);
    for (int m = 0; m < M; ++m) dots[r][m] = sum_lanes<T>(sum[r][m]);
  }
}

template <typename T>
struct FewRowsForward {
  const T *x, *v, *g, *bias;  // [m, k], [n, k], [n], [n] or null
  T* y;                       // [m, n]
  acc_t<T>* norms;            // [n]
  int64_t m, n, k;
  double eps;
  bool relu;

  void run() const {
    const int64_t blocks = (n + kBlock - 1) / kBlock;
    const int64_t grain = std::max<int64_t>(1, 65536 / (kBlock * k * std::max<int64_t>(1, m)));
    at::parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t row = b * kBlock, count = std::min(kBlock, n - row);
        count == kBlock ? rows<kBlock>(row) : one_by_one(row, count);
      }
    });
  }

 private:
  void one_by_one(int64_t row, int64_t count) const {
    for (int64_t r = 0; r < count; ++r) rows<1>(row + r);
  }

  template <int R>
  void rows(int64_t row) const {
    acc_t<T> squares[R];
    if (m == 0) {
      for (int r = 0; r < R; ++r) norms[row + r] = row_norm(v + (row + r) * k, k, eps);
      return;
    }
    int64_t i = 0;
    // The first tile also sums the squares; its dots are scaled after that.
    if (m >= 4) {
      tile<R, 4, true>(row, i, squares), i += 4;
    } else {
      tile<R, 1, true>(row, i, squares), i += 1;
    }
    for (; i + 4 <= m; i += 4) tile<R, 4, false>(row, i, squares);
    for (; i < m; ++i) tile<R, 1, false>(row, i, squares);
  }

  template <int R, int M, bool kFirst>
  void tile(int64_t row, int64_t i, acc_t<T>* squares) const {
    acc_t<T> dots[R][M];
    dot_tile<T, R, M, kFirst>(v + row * k, x + i * k, k, dots, squares);
    for (int r = 0; r < R; ++r) {
      const int64_t at = row + r;
      if constexpr (kFirst) {
        norms[at] = square_is_safe<T>(squares[r]) ? std::sqrt(squares[r] + static_cast<acc_t<T>>(eps))
                                                  : careful_norm(v + at * k, k, 1, eps);
      }
      const acc_t<T> inv = inverse(norms[at]), gain = static_cast<acc_t<T>>(g[at]);
      for (int j = 0; j < M; ++j) {
        const acc_t<T> dot = norm_is_moderate<T>(norms[at]) ? dots[r][j] * (inv * gain) : careful_dot(at, i + j, inv) * gain;
        const acc_t<T> z = bias ? dot + static_cast<acc_t<T>>(bias[at]) : dot;
        y[(i + j) * n + at] = static_cast<T>(relu && z < 0 ? acc_t<T>(0) : z);  // NaN stays NaN
      }
    }
  }

  acc_t<T> careful_dot(int64_t row, int64_t i, acc_t<T> inv) const {
    acc_t<T> sum = 0;
    for (int64_t j = 0; j < k; ++j)
      sum += static_cast<acc_t<T>>(x[i * k + j]) * (static_cast<acc_t<T>>(v[row * k + j]) * inv);
    return sum;
  }
};

template <typename T>
struct FewRowsBackward {
  const T *dy, *x, *v, *g;  // [m, n], [m, k], [n, k], [n]
  const acc_t<T>* norms;    // [n]
  T *dx, *dv;               // [m, k], [n, k]; null if not requested
  acc_t<T>* c;              // [n]: dg
  int64_t m, n, k;
  bool want_c;

  // dx, dv and c in one pass over the rows of v. Each thread sums its own dx; they are added at the end.
  void run() const {
    const int64_t threads = n * k * m < 65536 ? 1 : at::get_num_threads();
    const int64_t blocks = (n + kBlock - 1) / kBlock, each = std::max<int64_t>(1, (blocks + threads - 1) / threads);
    const int64_t parts = (blocks + each - 1) / each;
    const int64_t padded = (k + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
    std::vector<acc_t<T>> partial(dx ? std::max<int64_t>(1, parts) * m * padded : 0, acc_t<T>(0));
    at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
      std::vector<acc_t<T>> dw(kBlock * padded);
      for (int64_t part = begin; part < end; ++part) {
        acc_t<T>* own = dx ? partial.data() + part * m * padded : nullptr;
        for (int64_t b = part * each; b < std::min(blocks, (part + 1) * each); ++b) {
          const int64_t row = b * kBlock, count = std::min(kBlock, n - row);
          if (count == kBlock) {
            rows<kBlock>(row, padded, own, dw.data());
          } else {
            for (int64_t r = 0; r < count; ++r) rows<1>(row + r, padded, own, dw.data());
          }
        }
      }
    });
    if (dx) add_partials(partial, parts, padded);
  }

 private:
  void add_partials(const std::vector<acc_t<T>>& partial, int64_t parts, int64_t padded) const {
    constexpr int64_t w = kLanes<T>;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < k; j += w) {
        Lane<T> sum = load_lane(partial.data() + i * padded + j);
        for (int64_t p = 1; p < parts; ++p) sum = sum + load_lane(partial.data() + (p * m + i) * padded + j);
        store_lane(dx + i * k + j, sum, std::min(w, k - j));
      }
    }
  }

  template <int R>
  void rows(int64_t row, int64_t padded, acc_t<T>* own, acc_t<T>* dw) const {
    bool moderate = true;
    for (int r = 0; r < R; ++r) moderate = moderate && norm_is_moderate<T>(norms[row + r]);
    m == 1 && moderate ? rows_of_one<R>(row, own) : rows_of_some<R>(row, padded, own, dw);
  }

  // One batch row: dw is an outer product, so it is never stored. c = dy <x, u>, and dv = s (dy x - c u).
  template <int R>
  void rows_of_one(int64_t row, acc_t<T>* own) const {
    constexpr int64_t w = kLanes<T>;
    acc_t<T> inv[R], s[R], d[R];
    Lane<T> dots[R], into[R];
    for (int r = 0; r < R; ++r) {
      inv[r] = inverse(norms[row + r]);
      s[r] = static_cast<acc_t<T>>(g[row + r]) * inv[r];
      d[r] = static_cast<acc_t<T>>(dy[row + r]);
      into[r] = Lane<T>(d[r] * s[r]);
      dots[r] = Lane<T>(0);
    }
    const bool want_dots = dv || want_c;
    for (int64_t j = 0; j < k; j += w) {
      const int64_t count = std::min(w, k - j);
      const Lane<T> b = load_lane(x + j, count);
      Lane<T> total = own ? Lane<T>::loadu(own + j) : Lane<T>(0);
      for (int r = 0; r < R; ++r) {
        const Lane<T> a = load_lane(v + (row + r) * k + j, count);
        if (want_dots) dots[r] = at::vec::fmadd(a, b, dots[r]);
        if (own) total = at::vec::fmadd(into[r], a, total);
      }
      if (own) total.store(own + j);
    }
    if (!want_dots) return;
    Lane<T> minus[R];
    for (int r = 0; r < R; ++r) {
      c[row + r] = d[r] * (sum_lanes<T>(dots[r]) * inv[r]);
      minus[r] = Lane<T>(-s[r] * (c[row + r] * inv[r]));
    }
    if (!dv) return;
    for (int64_t j = 0; j < k; j += w) {
      const int64_t count = std::min(w, k - j);
      const Lane<T> b = load_lane(x + j, count);
      for (int r = 0; r < R; ++r) {
        const Lane<T> a = load_lane(v + (row + r) * k + j, count);
        store_lane(dv + (row + r) * k + j, at::vec::fmadd(minus[r], a, into[r] * b), count);
      }
    }
  }

  // dw of R rows is kept in a buffer that stays in cache: first the dots with v, then dv = s (dw - c u).
  template <int R>
  void rows_of_some(int64_t row, int64_t padded, acc_t<T>* own, acc_t<T>* dw) const {
    constexpr int64_t w = kLanes<T>;
    acc_t<T> inv[R], s[R];
    Lane<T> dots[R];
    for (int r = 0; r < R; ++r) {
      inv[r] = inverse(norms[row + r]);
      s[r] = static_cast<acc_t<T>>(g[row + r]) * inv[r];
      dots[r] = Lane<T>(0);
    }
    const bool want_dw = dv || want_c;
    for (int64_t j = 0; j < k; j += w) {
      const int64_t count = std::min(w, k - j);
      Lane<T> a[R], u[R], sum[R];
      for (int r = 0; r < R; ++r) {
        a[r] = load_lane(v + (row + r) * k + j, count);
        u[r] = a[r] * Lane<T>(inv[r]);
        sum[r] = Lane<T>(0);
      }
      for (int64_t i = 0; i < m; ++i) {
        const T* d = dy + i * n + row;
        if (want_dw) {
          const Lane<T> b = load_lane(x + i * k + j, count);
          for (int r = 0; r < R; ++r) sum[r] = at::vec::fmadd(Lane<T>(static_cast<acc_t<T>>(d[r])), b, sum[r]);
        }
        if (own) {
          acc_t<T>* to = own + i * padded + j;
          Lane<T> total = Lane<T>::loadu(to);
          for (int r = 0; r < R; ++r)
            total = at::vec::fmadd(Lane<T>(static_cast<acc_t<T>>(d[r]) * static_cast<acc_t<T>>(g[row + r])), u[r], total);
          total.store(to);
        }
      }
      if (want_dw) {
        for (int r = 0; r < R; ++r) {
          dots[r] = at::vec::fmadd(sum[r], u[r], dots[r]);
          sum[r].store(dw + r * padded + j);
        }
      }
    }
    if (!want_dw) return;
    for (int r = 0; r < R; ++r) {
      const acc_t<T> dot = sum_lanes<T>(dots[r]);
      c[row + r] = dot;
      if (dv) project_row(dv + (row + r) * k, dw + r * padded, v + (row + r) * k, s[r], dot * inv[r], k);
    }
  }
};

}  // namespace wnfused
