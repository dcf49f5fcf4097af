// The register tile of the direct convolutions: a few rows times a few vectors of columns, summed along two operands. One
// operand is read an element at a time and broadcast to a vector, the other a vector at a time, so neither needs a blocked
// copy.
#pragma once

#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace wnfused {

using Vec = at::vec::Vectorized<float>;
inline constexpr int64_t kVec = Vec::size();

// Accumulators, one row of vectors and a broadcast element must fit into the registers: 32 with AVX-512, 16 without.
inline constexpr int kMostVectors = kVec == 16 ? 4 : 2;
inline constexpr int kMostRows = 8;
constexpr int most_rows(int vectors) { return vectors == kMostVectors ? 6 : kMostRows; }

constexpr int vectors_of(int64_t columns) { return static_cast<int>((columns + kVec - 1) / kVec); }

// The positions of the two operands at each step of a sum: two nested loops, the inner one over a table of offsets.
struct Step {
  int64_t a, b;
};

struct Walk {
  int64_t outer, a_outer, b_outer;
  const Step *begin, *end;
  int64_t fetch = 0;  // floats of a to prefetch for the next outer step
};

// out[r, c] (+)= sum over the steps of a[r * a_row + step] * b[step + position of c], for c < count. If scale and shift are
// given, each row is then scaled and shifted. b is read in whole vectors, each with its own position, so up to kVec - 1
// elements past count are read.
struct Tile {
  const float *a, *b;
  int64_t a_row;
  std::array<int64_t, kMostVectors> places;
  float* out;
  int64_t out_row, count;
  bool add;
  const float *scale = nullptr, *shift = nullptr;
  bool relu = false;
};

template <int R, int V>
void run_tile(const Tile& t, const Walk& walk) {
  Vec acc[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) acc[r][j] = Vec(0);
  // Pointers and offsets must fit into the general registers: reloading one costs a cycle of the multipliers.
  const float *a_outer = t.a, *b_outer = t.b + t.places[0];
  int64_t place[V];
  for (int j = 0; j < V; ++j) place[j] = t.places[j] - t.places[0];
  const int64_t a_row = t.a_row;
  const Step* const end = walk.end;
  for (int64_t o = walk.outer; o > 0; --o, a_outer += walk.a_outer, b_outer += walk.b_outer) {
    for (int64_t i = 0; i < walk.fetch; i += 16) __builtin_prefetch(a_outer + 2 * walk.a_outer + i);
    for (const Step* step = walk.begin; step != end; ++step) {
      const float *a = a_outer + step->a, *b = b_outer + step->b;
      Vec columns[V];
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) columns[j] = Vec::loadu(b + place[j]);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r, a += a_row) {
        const Vec element(*a);
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j) acc[r][j] = at::vec::fmadd(element, columns[j], acc[r][j]);
      }
    }
  }
  const auto lanes = [&](int j) { return std::min<int64_t>(kVec, t.count - j * kVec); };
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Vec scale(t.scale ? t.scale[r] : 1.0f), shift(t.shift ? t.shift[r] : 0.0f);
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      float* out = t.out + r * t.out_row + j * kVec;
      Vec sum = acc[r][j];
      if (t.add) sum = sum + (j + 1 < V || lanes(j) == kVec ? Vec::loadu(out) : Vec::loadu(out, lanes(j)));
      if (t.scale) sum = at::vec::fmadd(sum, scale, shift);
      if (t.relu) sum = at::vec::maximum(sum, Vec(0));
      j + 1 < V || lanes(j) == kVec ? sum.store(out) : sum.store(out, static_cast<int>(lanes(j)));
    }
  }
}

// Columns that are adjacent in memory.
inline constexpr std::array<int64_t, kMostVectors> kAdjacent = [] {
  std::array<int64_t, kMostVectors> places{};
  for (int j = 0; j < kMostVectors; ++j) places[j] = j * kVec;
  return places;
}();

using RunTile = void (*)(const Tile&, const Walk&);

template <int V, int... R>
constexpr std::array<RunTile, kMostRows> tiles_of(std::integer_sequence<int, R...>) {
  return {(R + 1 <= most_rows(V) ? run_tile<(R + 1 <= most_rows(V) ? R + 1 : 1), V> : nullptr)...};
}

template <int... V>
constexpr std::array<std::array<RunTile, kMostRows>, kMostVectors> all_tiles(std::integer_sequence<int, V...>) {
  return {tiles_of<V + 1>(std::make_integer_sequence<int, kMostRows>())...};
}

inline void run_tile(int rows, int vectors, const Tile& tile, const Walk& walk) {
  static constexpr auto tiles = all_tiles(std::make_integer_sequence<int, kMostVectors>());
  tiles[vectors - 1][rows - 1](tile, walk);
}

// Vectors per block of columns: as many as the registers hold, or one less if only that divides the row.
inline int block_vectors(int64_t columns) {
  const int vectors = vectors_of(columns);
  if (vectors <= kMostVectors) return vectors;
  return vectors % kMostVectors != 0 && vectors % (kMostVectors - 1) == 0 ? kMostVectors - 1 : kMostVectors;
}

// Calls body(first, count) for blocks of at most `most` rows: as few as possible, all of nearly the same size.
template <typename Body>
inline void for_row_blocks(int64_t begin, int64_t end, int64_t most, const Body& body) {
  const int64_t rows = end - begin, blocks = (rows + most - 1) / most;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t first = begin + rows * i / blocks, last = begin + rows * (i + 1) / blocks;
    body(first, last - first);
  }
}

}  // namespace wnfused
