#include "arguments.h"

#include <ATen/OpMathType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <string>

namespace wnfused {
namespace {

constexpr int64_t kMostSize = std::numeric_limits<int32_t>::max();  // the largest stride, padding or dilation

// The operator's and the argument's name, with which every message begins.
struct Where {
  const char* op;
  const char* name;
};

std::ostream& operator<<(std::ostream& out, const Where& at) {
  return out << "wnfused::" << at.op << ": " << at.name << ": ";
}

bool is_float(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf;
}

void check_floating(Where at, const Tensor& t) {
  TORCH_CHECK_TYPE(t.defined(), at, "expected a tensor, got None");
  TORCH_CHECK_TYPE(is_float(t.scalar_type()), at, "expected a float32, float64, bfloat16 or float16 tensor, got ",
                   t.scalar_type());
  TORCH_CHECK_TYPE(t.layout() == at::kStrided, at, "expected a dense (strided) tensor, got ", t.layout());
}

// A floating tensor on v's device. float32 and 16-bit types may be mixed, as under autocast; float64 may not.
void check_beside_v(Where at, const Tensor& t, const Tensor& v) {
  check_floating(at, t);
  TORCH_CHECK_VALUE(t.device() == v.device(), at, "expected device ", v.device(), " like v, got ", t.device());
  TORCH_CHECK_TYPE((t.scalar_type() == at::kDouble) == (v.scalar_type() == at::kDouble), at, "expected dtype ",
                   v.scalar_type(), " like v, got ", t.scalar_type());
}

void check_shape(Where at, const Tensor& t, at::IntArrayRef expected) {
  TORCH_CHECK_VALUE(t.sizes() == expected, at, "expected shape ", expected, ", got ", t.sizes());
}

void check_dtype(Where at, const Tensor& t, at::ScalarType expected) {
  TORCH_CHECK_TYPE(t.scalar_type() == expected, at, "expected dtype ", expected, ", got ", t.scalar_type());
}

bool has_gain_shape(const Tensor& g, const Tensor& v, Dim dim) {
  if (!dim) return g.dim() == 0;
  if (g.dim() != v.dim()) return false;
  for (int64_t d = 0; d < v.dim(); ++d)
    if (g.size(d) != (d == *dim ? v.size(d) : 1)) return false;
  return true;
}

void check_weight(const char* op, const Tensor& v, const Tensor& g, Dim dim, double eps) {
  check_floating({op, "v"}, v);
  check_beside_v({op, "g"}, g, v);
  TORCH_CHECK_VALUE(!dim || (*dim >= 0 && *dim < v.dim()), Where{op, "dim"}, "expected None or 0 to ", v.dim() - 1,
                    " for a ", v.dim(), "-d weight, got ", *dim);
  TORCH_CHECK_VALUE(has_gain_shape(g, v, dim), Where{op, "g"}, "shape ", g.sizes(), " does not fit v of shape ", v.sizes(),
                    " and dim=", dim ? std::to_string(*dim) : "None");
  const auto statistics = at::toOpMathType(v.scalar_type());
  const double most = statistics == at::kDouble ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  TORCH_CHECK_VALUE(eps >= 0 && eps <= most, Where{op, "eps"}, "expected a finite ", statistics, " number >= 0, got ", eps);
}

void check_bias(const char* op, const MaybeTensor& bias, const Tensor& v, int64_t channels) {
  if (!bias.has_value() || !bias->defined()) return;
  check_beside_v({op, "bias"}, *bias, v);
  check_shape({op, "bias"}, *bias, {channels});
}

void check_norms(const char* op, const Tensor& norms, const Tensor& v, const Tensor& g) {
  check_beside_v({op, "norms"}, norms, v);
  check_dtype({op, "norms"}, norms, at::toOpMathType(v.scalar_type()));
  check_shape({op, "norms"}, norms, g.sizes());
}

// dy and, with a fused ReLU, the output y. Both have the shape of the forward's output and the dtype of x.
void check_output_side(const char* op, const Tensor& dy, const MaybeTensor& y, const Tensor& x, at::IntArrayRef shape) {
  check_beside_v({op, "dy"}, dy, x);
  check_dtype({op, "dy"}, dy, x.scalar_type());
  check_shape({op, "dy"}, dy, shape);
  if (!y.has_value() || !y->defined()) return;
  check_beside_v({op, "y"}, *y, x);
  check_dtype({op, "y"}, *y, x.scalar_type());
  check_shape({op, "y"}, *y, shape);
}

void check_linear_input(const char* op, const Tensor& x, const Tensor& v) {
  TORCH_CHECK_VALUE(v.dim() == 2, Where{op, "v"}, "expected 2 dimensions [out, in], got shape ", v.sizes());
  check_beside_v({op, "x"}, x, v);
  TORCH_CHECK_VALUE(x.dim() > 0 && x.size(-1) == v.size(1), Where{op, "x"}, "expected last dimension ", v.size(1),
                    " like v of shape ", v.sizes(), ", got shape ", x.sizes());
}

void check_sizes(Where at, at::IntArrayRef values, int64_t count, int64_t least) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(values.size()) == count, at, "expected ", count, " integers, got ", values);
  for (const int64_t value : values)
    TORCH_CHECK_VALUE(value >= least && value <= kMostSize, at, "expected integers from ", least, " to ", kMostSize,
                      ", got ", values);
}

void check_channels(const char* op, const Tensor& x, const Tensor& v, const Geometry& geometry) {
  TORCH_CHECK_VALUE(v.dim() >= 3 && v.dim() <= 5 && v.numel() > 0, Where{op, "v"},
                    "expected 3 to 5 non-empty dimensions, got shape ", v.sizes());
  check_beside_v({op, "x"}, x, v);
  TORCH_CHECK_VALUE(x.dim() == v.dim(), Where{op, "x"}, "expected ", v.dim(), " dimensions like v, got shape ", x.sizes());
  const int64_t groups = geometry.groups;
  TORCH_CHECK_VALUE(groups >= 1 && v.size(0) % groups == 0, Where{op, "groups"}, "expected a divisor of v.shape[0] = ",
                    v.size(0), ", got ", groups);
  const int64_t channels = geometry.transposed ? v.size(0) : v.size(1) * groups;
  TORCH_CHECK_VALUE(x.size(1) == channels, Where{op, "x"}, "expected ", channels, " channels for v of shape ", v.sizes(),
                    " and groups=", groups, ", got shape ", x.sizes());
  for (int64_t d = 2; d < x.dim(); ++d)
    TORCH_CHECK_VALUE(x.size(d) > 0, Where{op, "x"}, "expected non-empty spatial dimensions, got shape ", x.sizes());
}

// The output's size in spatial dimension i; 0 or less if the output is empty. 128 bits hold every product.
__int128 output_size(const Tensor& x, const Tensor& v, const Geometry& g, int64_t i) {
  const __int128 size = x.size(i + 2), reach = static_cast<__int128>(g.dilation[i]) * (v.size(i + 2) - 1) + 1;
  if (g.transposed) return (size - 1) * g.stride[i] - 2 * static_cast<__int128>(g.padding[i]) + reach + g.output_padding[i];
  const __int128 room = size + 2 * static_cast<__int128>(g.padding[i]) - reach;
  return room < 0 ? 0 : room / g.stride[i] + 1;
}

at::DimVector check_geometry(const char* op, const Tensor& x, const Tensor& v, const Geometry& g) {
  check_channels(op, x, v, g);
  const int64_t n = v.dim() - 2;
  check_sizes({op, "stride"}, g.stride, n, 1);
  check_sizes({op, "padding"}, g.padding, n, 0);
  check_sizes({op, "dilation"}, g.dilation, n, 1);
  check_sizes({op, "output_padding"}, g.output_padding, n, 0);
  at::DimVector shape{x.size(0), g.transposed ? v.size(1) * g.groups : v.size(0)};
  for (int64_t i = 0; i < n; ++i) {
    const int64_t most = g.transposed ? std::max(g.stride[i], g.dilation[i]) - 1 : 0;
    TORCH_CHECK_VALUE(g.output_padding[i] <= most, Where{op, "output_padding"}, "expected at most ", most,
                      " in spatial dimension ", i, ", got ", g.output_padding);
    const __int128 size = output_size(x, v, g, i);
    TORCH_CHECK_VALUE(size >= 1 && size <= std::numeric_limits<int64_t>::max(), Where{op, "x"}, "shape ", x.sizes(),
                      " leaves no output in spatial dimension ", i, " for v of shape ", v.sizes(), ", padding ", g.padding,
                      " and dilation ", g.dilation);
    shape.push_back(static_cast<int64_t>(size));
  }
  return shape;
}

void check_count(const char* op, const char* name, size_t count, at::TensorList v) {
  TORCH_CHECK_VALUE(count == v.size(), (Where{op, name}), "expected ", v.size(), " like v, got ", count);
}

void check_weights(
    const char* op, at::TensorList v, at::TensorList g, at::IntArrayRef dims, at::ArrayRef<double> eps) {
  TORCH_CHECK_VALUE(!v.empty(), (Where{op, "v"}), "expected at least one weight, got an empty list");
  check_count(op, "g", g.size(), v);
  check_count(op, "dims", dims.size(), v);
  check_count(op, "eps", eps.size(), v);
  for (size_t i = 0; i < v.size(); ++i) {
    const std::string where = std::string(op) + ": weight " + std::to_string(i);
    check_weight(where.c_str(), v[i], g[i], dims[i] == -1 ? Dim() : Dim(dims[i]), eps[i]);
    check_dtype({where.c_str(), "v"}, v[i], v[0].scalar_type());
    check_dtype({where.c_str(), "g"}, g[i], g[0].scalar_type());
  }
}

}  // namespace

void check_model_weights(
    at::TensorList v, at::TensorList g, at::IntArrayRef dims, at::ArrayRef<double> eps, at::ScalarType dtype) {
  const char* op = "model_weights";
  check_weights(op, v, g, dims, eps);
  const bool fits = is_float(dtype) && (dtype == at::kDouble) == (v[0].scalar_type() == at::kDouble);
  TORCH_CHECK_TYPE(fits, (Where{op, "dtype"}), "expected a floating dtype that fits v of ", v[0].scalar_type(), ", got ", dtype);
}

void check_model_weights_backward(at::TensorList dw, at::TensorList v, at::TensorList g, const Tensor& norms,
                                  at::IntArrayRef dims, at::ArrayRef<double> eps, const c10::List<bool>& want_v,
                                  const c10::List<bool>& want_g) {
  const char* op = "model_weights_backward";
  check_weights(op, v, g, dims, eps);
  check_count(op, "dw", dw.size(), v);
  check_count(op, "want_v", want_v.size(), v);
  check_count(op, "want_g", want_g.size(), v);
  int64_t rows = 0;
  for (size_t i = 0; i < v.size(); ++i) {
    const std::string where = std::string(op) + ": weight " + std::to_string(i);
    check_beside_v({where.c_str(), "dw"}, dw[i], v[i]);
    check_dtype({where.c_str(), "dw"}, dw[i], dw[0].scalar_type());
    check_shape({where.c_str(), "dw"}, dw[i], v[i].sizes());
    rows += g[i].numel();
  }
  check_beside_v({op, "norms"}, norms, v[0]);
  check_dtype({op, "norms"}, norms, at::toOpMathType(v[0].scalar_type()));
  check_shape({op, "norms"}, norms, {rows});
}

void check_weight_norm(const Tensor& v, const Tensor& g, Dim dim, double eps) {
  check_weight("weight_norm", v, g, dim, eps);
}

void check_weight_norm_backward(
    const Tensor& dw, const Tensor& v, const Tensor& g, const Tensor& norms, Dim dim, double eps) {
  const char* op = "weight_norm_backward";
  check_weight(op, v, g, dim, eps);
  check_beside_v({op, "dw"}, dw, v);
  check_shape({op, "dw"}, dw, v.sizes());
  check_norms(op, norms, v, g);
}

void check_linear(const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias, Dim dim, double eps) {
  const char* op = "linear";
  check_weight(op, v, g, dim, eps);
  check_linear_input(op, x, v);
  check_bias(op, bias, v, v.size(0));
}

void check_linear_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                           const MaybeTensor& y, Dim dim, double eps) {
  const char* op = "linear_backward";
  check_weight(op, v, g, dim, eps);
  check_linear_input(op, x, v);
  check_norms(op, norms, v, g);
  at::DimVector shape(x.sizes());
  shape.back() = v.size(0);
  check_output_side(op, dy, y, x, shape);
}

void check_convolution(const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias,
                       const Geometry& geometry, Dim dim, double eps) {
  const char* op = "convolution";
  check_weight(op, v, g, dim, eps);
  check_bias(op, bias, v, check_geometry(op, x, v, geometry)[1]);
}

void check_convolution_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                                const MaybeTensor& y, const Geometry& geometry, Dim dim, double eps) {
  const char* op = "convolution_backward";
  check_weight(op, v, g, dim, eps);
  check_norms(op, norms, v, g);
  check_output_side(op, dy, y, x, check_geometry(op, x, v, geometry));
}

}  // namespace wnfused
