// Contiguous images and weights brought into channels-last order and back: oneDNN's convolutions take about two thirds of
// the time in that order, and the passes that normalize the weight can turn it on their way.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace wnfused {

using at::Tensor;

// What a convolution takes, all brought into order in one parallel region.
struct ChannelsLast {
  Tensor x, w, dy, norms;
};

// x, and w = g v / n, for contiguous x [batch, channels, height, width] and v with a norm per output channel.
ChannelsLast channels_last_forward(const Tensor& x, const Tensor& v, const Tensor& g, double eps);

// The same from known norms, and a contiguous dy; what is not needed (dx only, dw only) is left out.
ChannelsLast channels_last_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g,
                                    const Tensor& norms, bool need_x, bool need_w);

// The way back, through a ReLU if asked for. t is channels-last and is given up.
Tensor to_contiguous(Tensor t, bool relu);

// (dv, dg) from a channels-last dw, in the order of the contiguous v. Undefined results were not asked for.
std::tuple<Tensor, Tensor> project_channels_last(
    const Tensor& dw, const Tensor& v, const Tensor& g, const Tensor& norms, bool want_dv, bool want_dg);

}  // namespace wnfused
