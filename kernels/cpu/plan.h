// Which of several ways computes a product of a convolution: the fastest by a cost model (plan.cpp). The choice depends on
// shapes, memory order, the number of threads and the CPU, never on a clock, so it is the same in every run.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <string>
#include <vector>

#include "kernels.h"

namespace wnfused {

enum class Product : int64_t { kOutput, kInputGradient, kWeightGradient };  // y, dx, dw
constexpr int64_t kProducts = 3;

// Torch's convolution (oneDNN) with the gain applied to the weight, the output or the input, or to dy and dx instead; a
// matmul with the image's patches; or the direct kernels. dw has no gain: torch's convolution computes it on the first route.
enum class Route : int64_t { kScaledWeight, kScaledOutput, kScaledInput, kPatches, kDirect };
constexpr int64_t kRoutes = 5;
using Costs = std::array<double, kRoutes>;  // microseconds by the model; infinite if the route cannot compute the product

// What the choice depends on.
struct Problem {
  std::vector<int64_t> x, v, y;  // sizes
  Geometry geometry;
  Dim dim;
  bool wide;        // one dtype for x, v and g, of 32 bits or more: the gain may be applied to activations
  bool contiguous;  // float x and v in torch's default order: the direct kernels and patches apply
};

Problem problem_of(const Tensor& x, const Tensor& v, const Tensor& g, const Geometry& geometry, Dim dim);
Costs costs_of(Product product, const Problem& problem, int64_t threads);

// The cheapest route, unless `wnfused tune` measured this problem and its answers were loaded.
Route route_of(Product product, const Problem& problem);

}  // namespace wnfused
