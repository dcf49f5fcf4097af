// The operators' signatures and their two overloads, looked up once: op() is the default one, python() the one that always
// runs Python.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "kernels.h"

namespace wnfused {

using Forward = std::tuple<Tensor, Tensor>;

template <typename Signature>
auto find_operator(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Signature>();
}

using Ints = at::IntArrayRef;
using WeightNorm = Forward(const Tensor&, const Tensor&, Dim, double);
using WeightNormBackward =
    std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&, Dim, double, std::array<bool, 2>);
using ModelWeights = std::tuple<std::vector<Tensor>, Tensor>(at::TensorList, at::TensorList, Ints, at::ArrayRef<double>,
                                                             at::ScalarType);
using ModelWeightsBackward = std::tuple<std::vector<Tensor>, std::vector<Tensor>>(
    at::TensorList, at::TensorList, at::TensorList, const Tensor&, Ints, at::ArrayRef<double>, c10::List<bool>,
    c10::List<bool>);
using Linear = Forward(const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&, Dim, double, bool);
using LinearBackward = Gradients(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                 const MaybeTensor&, Dim, double, bool, std::array<bool, 4>);
using Convolution = Forward(const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&, Ints, Ints, Ints, bool, Ints,
                            int64_t, Dim, double, bool);
using ConvolutionBackward = Gradients(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                      const MaybeTensor&, Ints, Ints, Ints, bool, Ints, int64_t, Dim, double,
                                      std::array<bool, 4>);

#define WNFUSED_OPERATOR(Name, name)                                       \
  struct Name##Op {                                                        \
    static const auto& op() {                                              \
      static const auto handle = find_operator<Name>("wnfused::" name, "");         \
      return handle;                                                       \
    }                                                                      \
    static const auto& python() {                                          \
      static const auto handle = find_operator<Name>("wnfused::" name, "python");   \
      return handle;                                                       \
    }                                                                      \
  };
WNFUSED_OPERATOR(WeightNorm, "weight_norm")
WNFUSED_OPERATOR(WeightNormBackward, "weight_norm_backward")
WNFUSED_OPERATOR(ModelWeights, "model_weights")
WNFUSED_OPERATOR(ModelWeightsBackward, "model_weights_backward")
WNFUSED_OPERATOR(Linear, "linear")
WNFUSED_OPERATOR(LinearBackward, "linear_backward")
WNFUSED_OPERATOR(Convolution, "convolution")
WNFUSED_OPERATOR(ConvolutionBackward, "convolution_backward")
#undef WNFUSED_OPERATOR

}  // namespace wnfused
