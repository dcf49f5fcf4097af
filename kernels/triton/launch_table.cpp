// The table of recorded calls, and the launches through the driver library. No CUDA header is needed: the driver's functions
// are given as addresses.
#include "launch_table.h"

#include <ATen/Context.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pthread.h>

#include <cstring>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <unordered_map>

namespace wnfused {

std::atomic<int> launch_path_device{-1};

struct Recipe {
  struct Buffer {
    at::ScalarType dtype;
    std::vector<int64_t> sizes, strides;
  };
  struct Output {
    int64_t buffer;  // -1: undefined
    bool view;       // of the buffer, with sizes and strides of its own
    std::vector<int64_t> sizes, strides;
  };
  enum Source : int64_t { constant, input, buffer, scratch };
  struct Argument {
    Source source;
    int64_t index;
    int64_t value;  // the constant's bits, or an offset in bytes
  };
  struct Launch {
    void* function;
    unsigned grid[3], threads, shared;
    std::vector<Argument> arguments;
  };
  std::vector<Buffer> buffers;
  int64_t scratch_bytes = 0;
  std::vector<Output> outputs;
  std::vector<Launch> launches;
  bool in_python = false;  // it includes steps that are not launches
};

namespace {

// cuLaunchKernel and hipModuleLaunchKernel have the same signature.
using LaunchKernel = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
using ErrorString = int (*)(int, const char**);
using CurrentContext = int (*)(void**);
using RetainContext = int (*)(void**, int);
using SetContext = int (*)(void*);

struct Driver {
  LaunchKernel launch = nullptr;
  ErrorString error = nullptr;
  CurrentContext current = nullptr;  // null where there are no contexts: HIP, tests
  RetainContext retain = nullptr;
  SetContext set = nullptr;
} driver;

constexpr size_t most_recipes = 8192;  // dynamic shapes would otherwise fill the memory
using Table = std::unordered_map<std::string, std::shared_ptr<const Recipe>>;
Table& table() {
  static auto* t = new Table;  // never destroyed: threads may still launch when the process ends
  return *t;
}
std::shared_mutex& mutex() {
  static auto* m = new std::shared_mutex;
  return *m;
}
std::atomic<int64_t> misses{0};  // calls that ran in Python
thread_local bool pending = false;  // Python is running a call that it may record, under pending_key
thread_local std::string pending_key;

std::shared_ptr<const Recipe> find(const std::string& key) {
  std::shared_lock<std::shared_mutex> lock(mutex());
  auto found = table().find(key);
  return found == table().end() ? nullptr : found->second;
}

void put(const std::string& key, std::shared_ptr<const Recipe> recipe) {
  std::unique_lock<std::shared_mutex> lock(mutex());
  if (table().size() >= most_recipes) table().clear();
  table()[key] = std::move(recipe);
}

// A thread of the autograd engine may have no current context yet.
void ensure_context(int device) {
  if (!driver.current) return;
  void* context = nullptr;
  if (driver.current(&context) == 0 && context) return;
  TORCH_CHECK(driver.retain(&context, device) == 0 && driver.set(context) == 0,
              "wnfused: device ", device, ": its primary context cannot be made current; is the GPU still available?");
}

void check_launch(int code) {
  if (code == 0) return;
  const char* text = nullptr;
  if (driver.error) driver.error(code, &text);
  const bool stale = code == 201 || code == 400 || code == 709;  // invalid or destroyed context, invalid handle
  TORCH_CHECK(false, "wnfused: the launch of a kernel failed: ", text ? text : "unknown error", " (driver error ", code, ")",
              stale ? "; its CUDA context was destroyed, for example by a device reset: restart the process" : "");
}

}  // namespace

namespace {
std::string& key_buffer() {
  thread_local std::string buffer;  // of one call at a time: it is no longer read when Python runs
  return buffer;
}
template <typename T>
void append(std::string& key, T value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
}  // namespace

Call::Call(int64_t op) : key_(key_buffer()) {
  key_.clear();
  append(key_, op);
  const auto& context = at::globalContext();
  append(key_, static_cast<char>(context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL)));
  append(key_, static_cast<char>(context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::CONV)));
}

Call& Call::tensor(const at::Tensor& t) {
  TORCH_INTERNAL_ASSERT(count_ < most_tensors);
  if (!t.defined()) {
    append(key_, '-');
    addresses_[count_++] = nullptr;
    return *this;
  }
  const void* address = t.const_data_ptr();
  if (count_ == 0) device_ = t.device();
  const auto sizes = t.sizes(), strides = t.strides();
  const char facts[] = {static_cast<char>(t.scalar_type()), static_cast<char>(t.device().type()),
                        static_cast<char>(t.device().index()), static_cast<char>(sizes.size()),
                        static_cast<char>(reinterpret_cast<uintptr_t>(address) % 16 == 0)};
  key_.append(facts, sizeof(facts));
  key_.append(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(int64_t));
  key_.append(reinterpret_cast<const char*>(strides.data()), strides.size() * sizeof(int64_t));
  addresses_[count_++] = address;
  return *this;
}

Call& Call::number(int64_t value) { return append(key_, value), *this; }
Call& Call::number(double value) { return append(key_, value), *this; }
Call& Call::numbers(at::IntArrayRef values) {
  append(key_, static_cast<char>(values.size()));
  key_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
  return *this;
}

Call::~Call() {
  if (recording_) pending = false;
}

std::optional<std::vector<at::Tensor>> Call::run() {
  const auto recipe = find(key_);
  if (!recipe || recipe->in_python) {
    misses.fetch_add(1, std::memory_order_relaxed);
    if (!recipe) pending_key = key_, pending = recording_ = true;
    return std::nullopt;
  }
  const c10::DeviceGuard guard(device_);
  void* stream = nullptr;
  if (device_.type() != at::kCPU) {
    stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).native_handle();
    ensure_context(device_.index());
  }
  const auto options = at::TensorOptions().device(device_);
  c10::SmallVector<at::Tensor, 8> buffers;
  for (const auto& b : recipe->buffers) buffers.push_back(at::empty_strided(b.sizes, b.strides, options.dtype(b.dtype)));
  at::Tensor scratch;
  if (recipe->scratch_bytes > 0) scratch = at::empty({recipe->scratch_bytes}, options.dtype(at::kByte));
  for (const auto& launch : recipe->launches) {
    const size_t n = launch.arguments.size();
    c10::SmallVector<uint64_t, 64> values(n);
    c10::SmallVector<void*, 64> params(n);
    for (size_t i = 0; i < n; ++i) {
      const auto& a = launch.arguments[i];
      const void* base = nullptr;
      if (a.source == Recipe::input) base = addresses_[a.index];
      if (a.source == Recipe::buffer) base = buffers[a.index].const_data_ptr();
      if (a.source == Recipe::scratch) base = scratch.const_data_ptr();
      values[i] = reinterpret_cast<uint64_t>(base) + static_cast<uint64_t>(a.value);
      params[i] = &values[i];
    }
    check_launch(driver.launch(launch.function, launch.grid[0], launch.grid[1], launch.grid[2], launch.threads, 1, 1,
                               launch.shared, stream, params.data(), nullptr));
  }
  std::vector<at::Tensor> outputs;
  outputs.reserve(recipe->outputs.size());
  for (const auto& o : recipe->outputs) {
    if (o.buffer < 0) {
      outputs.emplace_back();
    } else if (o.view) {
      outputs.push_back(at::as_strided(buffers[o.buffer], o.sizes, o.strides));
    } else {
      outputs.push_back(buffers[o.buffer]);
    }
  }
  return outputs;
}

namespace {

struct Reader {
  const int64_t* at;
  int64_t next() { return *at++; }
  std::vector<int64_t> list(int64_t n) {
    std::vector<int64_t> values(at, at + n);
    at += n;
    return values;
  }
};

std::shared_ptr<const Recipe> read(const int64_t* numbers) {
  Reader in{numbers};
  auto recipe = std::make_shared<Recipe>();
  for (int64_t n = in.next(); n > 0; --n) {
    const auto dtype = static_cast<at::ScalarType>(in.next());
    const int64_t dims = in.next();
    auto sizes = in.list(dims);
    recipe->buffers.push_back({dtype, std::move(sizes), in.list(dims)});
  }
  recipe->scratch_bytes = in.next();
  for (int64_t n = in.next(); n > 0; --n) {
    const int64_t buffer = in.next(), dims = in.next();  // dims of -1: the buffer itself
    if (dims < 0) {
      recipe->outputs.push_back({buffer, false, {}, {}});
    } else {
      auto sizes = in.list(dims);
      recipe->outputs.push_back({buffer, true, std::move(sizes), in.list(dims)});
    }
  }
  for (int64_t n = in.next(); n > 0; --n) {
    Recipe::Launch launch;
    launch.function = reinterpret_cast<void*>(in.next());
    for (unsigned& size : launch.grid) size = static_cast<unsigned>(in.next());
    launch.threads = static_cast<unsigned>(in.next());
    launch.shared = static_cast<unsigned>(in.next());
    for (int64_t k = in.next(); k > 0; --k) {
      const auto source = static_cast<Recipe::Source>(in.next());
      const int64_t index = in.next();
      launch.arguments.push_back({source, index, in.next()});
    }
    recipe->launches.push_back(std::move(launch));
  }
  return recipe;
}

// The mutex must not be held by a thread that does not exist in the child; handles are the parent's. The child makes a new
// mutex: its thread has another id than the one that locked.
void after_fork_in_child() {
  table().clear();
  new (&mutex()) std::shared_mutex;
}
[[maybe_unused]] const int at_fork = pthread_atfork([] { mutex().lock(); }, [] { mutex().unlock(); }, after_fork_in_child);

}  // namespace
}  // namespace wnfused

// --- called by table.py through ctypes ------------------------------------------------------------------------------------

extern "C" {

bool wnfused_recording() { return wnfused::pending; }

// Keep the recipe of the call that Python is running; null: this call always runs in Python.
void wnfused_install(const int64_t* numbers) {
  if (!wnfused::pending) return;
  std::shared_ptr<const wnfused::Recipe> recipe;
  if (numbers) {
    recipe = wnfused::read(numbers);
  } else {
    auto in_python = std::make_shared<wnfused::Recipe>();
    in_python->in_python = true;
    recipe = std::move(in_python);
  }
  wnfused::put(wnfused::pending_key, std::move(recipe));
}

void wnfused_forget() {
  std::unique_lock<std::shared_mutex> lock(wnfused::mutex());
  wnfused::table().clear();
}

int64_t wnfused_recipes() {
  std::shared_lock<std::shared_mutex> lock(wnfused::mutex());
  return static_cast<int64_t>(wnfused::table().size());
}

int64_t wnfused_misses() { return wnfused::misses; }

void wnfused_set_driver(void* launch, void* error, void* current, void* retain, void* set) {
  wnfused::driver = {reinterpret_cast<wnfused::LaunchKernel>(launch), reinterpret_cast<wnfused::ErrorString>(error),
                     reinterpret_cast<wnfused::CurrentContext>(current), reinterpret_cast<wnfused::RetainContext>(retain),
                     reinterpret_cast<wnfused::SetContext>(set)};
}

void wnfused_activate(int device) { wnfused::launch_path_device = wnfused::driver.launch ? device : -1; }
}
