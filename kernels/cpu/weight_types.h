// The types of weights, normalized weights and gradients that one loop over rows combines.
#pragma once

#include <ATen/Dispatch.h>

#include <type_traits>

namespace wnfused {

constexpr int64_t kGrain = 16384;  // the fewest elements per thread for which a second thread is worth it

#define WNFUSED_DISPATCH(dtype, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "wnfused", [&] { __VA_ARGS__(); })

// w and dw have v's type T or, under autocast with float v, a 16-bit type. Other types are converted in a separate pass.
inline bool fits(at::ScalarType dtype, at::ScalarType v) {
  return dtype == v || (v == at::kFloat && (dtype == at::kBFloat16 || dtype == at::kHalf));
}

template <typename T, typename Body>
void with_type(at::ScalarType dtype, const Body& body) {
  if constexpr (std::is_same_v<T, float>) {
    if (dtype == at::kBFloat16) return body(c10::BFloat16{});
    if (dtype == at::kHalf) return body(c10::Half{});
  }
  body(T{});
}

}  // namespace wnfused
