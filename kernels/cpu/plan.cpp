#include "plan.h"

#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include "arguments.h"
#include "plan_terms.h"
#include "tile.h"

namespace wnfused {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Routes other than torch's own convolution must be this much cheaper: the constants are from one machine, and a wrong choice
// would make the layer slower than with torch's weight norm.
constexpr double kMargin = 1.1;
constexpr int64_t kFewestPixels = 4;  // vectors of the direct kernels run along pixels: fewer leave most lanes empty
constexpr int64_t kMostStretch = 4;  // dx of a strided convolution also sums the zeros between dy's pixels

bool on_output(const Problem& p) {
  return !p.dim || (p.geometry.transposed ? *p.dim == 1 && p.geometry.groups == 1 : *p.dim == 0);
}

bool on_input(const Problem& p) {
  return !p.dim || (p.geometry.transposed ? *p.dim == 0 : *p.dim == 1 && p.geometry.groups == 1);
}

bool is_possible(Product product, Route route, const Problem& p) {
  const bool one_group = p.geometry.groups == 1 && !p.geometry.transposed && p.x.size() <= 4;
  const bool filled = c10::multiply_integers(p.x) > 0 && c10::multiply_integers(p.v) > 0;
  const int64_t stride = c10::multiply_integers(p.geometry.stride);
  const int64_t pixels = c10::multiply_integers(at::IntArrayRef(p.y).slice(2));
  switch (route) {
    case Route::kScaledWeight:
      return true;
    case Route::kScaledOutput:
      return product != Product::kWeightGradient && p.wide && on_output(p);
    case Route::kScaledInput:
      return product != Product::kWeightGradient && p.wide && on_input(p);
    case Route::kPatches:
      // Patches that are larger than the weight take more memory than they are worth.
      return p.contiguous && one_group && filled && p.x[0] == 1 && on_output(p) &&
             pixels <= p.v[0];
    case Route::kDirect:
      return p.contiguous && one_group && filled && p.dim == Dim(0) && pixels >= kFewestPixels &&
             (product == Product::kWeightGradient || stride <= (product == Product::kOutput ? 1 : kMostStretch));
  }
  return false;
}

// Answers of `wnfused tune`, by the problem's key. Replaced as a whole, so that readers need no lock.
using Tuned = std::map<std::vector<int64_t>, Route>;
std::shared_ptr<const Tuned> tuned = std::make_shared<const Tuned>();
std::atomic<bool> has_tuned{false};

std::vector<int64_t> key_of(Product product, const Problem& p) {
  std::vector<int64_t> key{static_cast<int64_t>(product), p.dim.value_or(-1), p.geometry.transposed, p.geometry.groups,
                           p.wide, p.contiguous, at::get_num_threads()};
  for (at::IntArrayRef sizes : {at::IntArrayRef(p.x), at::IntArrayRef(p.v), at::IntArrayRef(p.y), p.geometry.stride,
                                p.geometry.padding, p.geometry.dilation})
    key.insert(key.end(), sizes.begin(), sizes.end());
  return key;
}

}  // namespace

Problem problem_of(const Tensor& x, const Tensor& v, const Tensor& g, const Geometry& geometry, Dim dim) {
  const auto dtype = v.scalar_type();
  const bool alike = x.scalar_type() == dtype && g.scalar_type() == dtype;
  std::vector<int64_t> y{x.size(0), geometry.transposed ? v.size(1) * geometry.groups : v.size(0)};
  for (int64_t d = 2; d < x.dim(); ++d) {
    const int64_t i = d - 2, reach = geometry.dilation[i] * (v.size(d) - 1);
    y.push_back(geometry.transposed
                    ? (x.size(d) - 1) * geometry.stride[i] - 2 * geometry.padding[i] + reach + geometry.output_padding[i] + 1
                    : (x.size(d) + 2 * geometry.padding[i] - reach - 1) / geometry.stride[i] + 1);
  }
  return {x.sizes().vec(), v.sizes().vec(), y, geometry, dim,
          alike && (dtype == at::kFloat || dtype == at::kDouble),
          alike && dtype == at::kFloat && x.is_contiguous() && v.is_contiguous()};
}

Costs costs_of(Product product, const Problem& problem, int64_t threads) {
  const Constants& constants = kConstants[static_cast<int64_t>(product)];
  Costs costs;
  for (int64_t r = 0; r < kRoutes; ++r) {
    const auto route = static_cast<Route>(r);
    if (!is_possible(product, route, problem)) {
      costs[r] = kNever;
      continue;
    }
    const Terms terms = terms_of(product, route, problem, threads);
    const Terms& prices = route == Route::kDirect    ? constants.direct
                          : route == Route::kPatches ? constants.patches
                                                     : constants.vendor;
    const bool own = route == Route::kDirect || route == Route::kPatches;
    costs[r] = std::inner_product(terms.begin(), terms.end(), prices.begin(), 0.0) * (own ? kMargin : 1);
  }
  return costs;
}

Route route_of(Product product, const Problem& problem) {
  if (has_tuned) {
    const auto answers = std::atomic_load(&tuned);
    const auto found = answers->find(key_of(product, problem));
    if (found != answers->end()) return found->second;
  }
  const Costs costs = costs_of(product, problem, at::get_num_threads());
  return static_cast<Route>(std::min_element(costs.begin(), costs.end()) - costs.begin());
}

// For `wnfused tune --device cpu`, the fit and the tests. They name a problem by its tensors.
namespace {

struct Named {
  Product product;
  Problem problem;

  Named(int64_t which, const Tensor& x, const Tensor& v, const Tensor& g, const Geometry& geometry, Dim dim)
      : product(static_cast<Product>(which)), problem(checked(x, v, g, geometry, dim)) {
    TORCH_CHECK_VALUE(which >= 0 && which < kProducts, "wnfused: product: ", which, "; expected 0 to ", kProducts - 1);
  }

  static Problem checked(const Tensor& x, const Tensor& v, const Tensor& g, const Geometry& geometry, Dim dim) {
    check_convolution(x, v, g, std::nullopt, geometry, dim, 0.0);
    return problem_of(x, v, g, geometry, dim);
  }
};

std::vector<double> costs(int64_t product, const Tensor& x, const Tensor& v, const Tensor& g, at::IntArrayRef stride,
                          at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                          at::IntArrayRef output_padding, int64_t groups, Dim dim) {
  const Named named(product, x, v, g, {stride, padding, dilation, transposed, output_padding, groups}, dim);
  const Costs found = costs_of(named.product, named.problem, at::get_num_threads());
  return {found.begin(), found.end()};
}

std::vector<double> terms(int64_t product, int64_t route, const Tensor& x, const Tensor& v, const Tensor& g,
                          at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                          at::IntArrayRef output_padding, int64_t groups, Dim dim) {
  const Named named(product, x, v, g, {stride, padding, dilation, transposed, output_padding, groups}, dim);
  TORCH_CHECK_VALUE(route >= 0 && route < kRoutes, "wnfused: route: ", route, "; expected 0 to ", kRoutes - 1);
  const auto way = static_cast<Route>(route);
  if (!is_possible(named.product, way, named.problem)) return {};
  const Terms found = terms_of(named.product, way, named.problem, at::get_num_threads());
  return {found.begin(), found.end()};
}

void set_route(int64_t product, int64_t route, const Tensor& x, const Tensor& v, const Tensor& g,
               at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
               at::IntArrayRef output_padding, int64_t groups, Dim dim) {
  const Named named(product, x, v, g, {stride, padding, dilation, transposed, output_padding, groups}, dim);
  TORCH_CHECK_VALUE(route >= 0 && route < kRoutes && is_possible(named.product, static_cast<Route>(route), named.problem),
                    "wnfused: route: ", route, " cannot compute this product");
  auto answers = std::make_shared<Tuned>(*std::atomic_load(&tuned));
  (*answers)[key_of(named.product, named.problem)] = static_cast<Route>(route);
  std::atomic_store(&tuned, std::shared_ptr<const Tuned>(std::move(answers)));
  has_tuned = true;
}

void forget_routes() {
  has_tuned = false;
  std::atomic_store(&tuned, std::make_shared<const Tuned>());
}

}  // namespace

TORCH_LIBRARY(wnfused_plan, m) {
  const std::string problem =
      "Tensor x, Tensor v, Tensor g, int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, "
      "int groups, int? dim)";
  m.def(("costs(int product, " + problem + " -> float[]").c_str(), costs);
  m.def(("terms(int product, int route, " + problem + " -> float[]").c_str(), terms);
  m.def(("set_route(int product, int route, " + problem + " -> ()").c_str(), set_route);
  m.def("forget_routes() -> ()", forget_routes);
}

}  // namespace wnfused
