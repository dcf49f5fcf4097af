// The table of recorded calls. A recipe says what a call of an operator allocates and launches, for one key: the shapes,
// strides, dtypes, devices and 16-byte alignments of its tensors and all its numbers. recipe.py makes the recipes.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace wnfused {

struct Recipe;

// Builds the key of a call and collects its tensors, whose addresses become arguments of the launches.
class Call {
 public:
  explicit Call(int64_t op);
  Call& tensor(const at::Tensor& t);
  Call& tensor(const std::optional<at::Tensor>& t) { return tensor(t.has_value() ? *t : at::Tensor()); }
  Call& number(int64_t value);
  Call& number(double value);
  Call& numbers(at::IntArrayRef values);

  // The outputs (undefined where a gradient is not requested), or nothing where the call has to run in Python. In that
  // case Python may record the call: this object's key is the one that `wnfused_install` uses until it is destroyed.
  std::optional<std::vector<at::Tensor>> run();
  ~Call();

 private:
  std::string& key_;
  at::Device device_ = at::kCPU;
  static constexpr int most_tensors = 8;
  const void* addresses_[most_tensors];
  int count_ = 0;
  bool recording_ = false;
};

// The type of device whose calls are looked up: CUDA, in tests CPU, or -1 while another backend is used.
extern std::atomic<int> launch_path_device;

inline bool launch_path_active(const at::Tensor& t) {
  return t.defined() && static_cast<int>(t.device().type()) == launch_path_device.load(std::memory_order_relaxed);
}

}  // namespace wnfused
