// The BLAS that torch links, called directly: inside a parallel region, on a block that a thread has in cache.
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>

// Weak symbols: if torch's BLAS does not export them, they are null and the kernels use at::mm instead.
extern "C" __attribute__((weak)) void sgemm_(const char* transa, const char* transb, const int* m, const int* n,
                                             const int* k, const float* alpha, const float* a, const int* lda,
                                             const float* b, const int* ldb, const float* beta, float* c, const int* ldc);
extern "C" __attribute__((weak)) void dgemm_(const char* transa, const char* transb, const int* m, const int* n,
                                             const int* k, const double* alpha, const double* a, const int* lda,
                                             const double* b, const int* ldb, const double* beta, double* c,
                                             const int* ldc);

namespace wnfused {

inline bool has_gemm(at::ScalarType dtype, int64_t largest) {
  if (largest > std::numeric_limits<int>::max()) return false;
  return (dtype == at::kFloat && sgemm_ != nullptr) || (dtype == at::kDouble && dgemm_ != nullptr);
}

// C = op(A) op(B) + beta C, column-major as in BLAS, where a row-major matrix appears as its transpose.
template <typename T>
inline void gemm(char transa, char transb, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b,
                 int64_t ldb, T beta, T* c, int64_t ldc) {
  const T one = 1;
  const int mi = static_cast<int>(m), ni = static_cast<int>(n), ki = static_cast<int>(k);
  const int la = static_cast<int>(lda), lb = static_cast<int>(ldb), lc = static_cast<int>(ldc);
  if constexpr (std::is_same_v<T, float>) {
    sgemm_(&transa, &transb, &mi, &ni, &ki, &one, a, &la, b, &lb, &beta, c, &lc);
  } else {
    dgemm_(&transa, &transb, &mi, &ni, &ki, &one, a, &la, b, &lb, &beta, c, &lc);
  }
}

}  // namespace wnfused
