// A device whose work is late: an accelerator for tests, in the memory of the host.
//
// A GPU runs behind its program, so a program that forgets to wait is right nearly always, and wrong on a busy day.
// Here it is wrong each time. Nothing runs in parallel; instead, the device keeps book of who knows what has ended:
//
// 1. Each stream counts its work. A clock says how much of each stream has ended, as far as somebody knows: a stream,
//    the host, an event. Waiting is the only way to learn: it joins the clock of the one waited for.
// 2. Work that uses memory, without knowing of the end of other work that wrote it (or, if it writes, read it), is a
//    race: it raises, and is noted for `races()`.
// 3. A copy to the host lands once the host waits for it; until then the target holds 0xFF. A copy from pinned memory
//    reads its source once work or the host needs it, so a source that was overwritten too early gives wrong values.
// 4. Memory that is freed while another stream may use it, without record_stream, is a race. Freed and new memory
//    holds 0xFF: NaN as a float.
// 5. Time is virtual: a kernel and a byte of a copy take fixed seconds, in the stream that they run in.
//
// All operators run PyTorch's CPU kernels on the same bytes.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <set>

namespace {

constexpr auto kLate = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;
constexpr int kPoison = 0xFF;

using Key = int64_t;                   // a stream of a device
using Clock = std::map<Key, int64_t>;  // how much of each stream has ended, as far as somebody knows

Key key_of(c10::DeviceIndex device, int64_t stream) { return (int64_t(device) << 32) | stream; }
Key key_of(const c10::Stream& stream) { return key_of(stream.device_index(), stream.id()); }

bool knows(const Clock& clock, Key stream, int64_t work) {
  auto found = clock.find(stream);
  return work == 0 || (found != clock.end() && found->second >= work);
}

void join(Clock& clock, const Clock& other) {
  for (auto [stream, work] : other) clock[stream] = std::max(clock[stream], work);
}

struct Stream {
  int64_t launched = 0;
  Clock known;
  double seconds = 0;
};

struct Event {
  Key stream = 0;
  int64_t work = 0;
  Clock known;
  double seconds = 0;
  bool is_recorded = false;
  int polls = 0;
};

struct Copy {  // to the host: `bytes` land in `host`; from it: `host` is read into `bytes`, a view of the block
  Key stream;
  int64_t work;
  at::Tensor host;
  at::Tensor bytes;
};

struct Block {
  char* start;
  size_t size;
  Key owner;
  Key writer;
  int64_t written;
  Clock readers;
  std::set<Key> recorded;
  std::vector<Copy> arriving;
};

struct Memory {
  size_t used = 0, peak = 0, capacity = size_t(1) << 40;
  int64_t failures = 0;
};

// All state, guarded by `lock`. Recursive: freeing a tensor while it is held calls the allocators.
std::recursive_mutex lock;
std::map<Key, Stream> streams;
Clock host_known;
double host_seconds = 0;
std::map<char*, Block> blocks;
std::map<char*, size_t> pinned;
std::vector<Copy> landing;
std::vector<std::string> races;
std::map<std::string, int64_t> counts;
Memory memories[kDevices];
double kernel_seconds = 1e-5, byte_seconds = 1e-10;
int64_t next_stream = 1;

thread_local c10::DeviceIndex device_now = 0;
thread_local int64_t stream_now[kDevices] = {};

using Guard = std::lock_guard<std::recursive_mutex>;

std::string name_of(Key stream) {
  return "stream " + std::to_string(stream & 0xffffffff) + " of late:" + std::to_string(stream >> 32);
}

void note_race(const std::string& text) {
  races.push_back(text);
  counts["races"]++;
}

void race(const std::string& text) {
  note_race(text);
  TORCH_CHECK(false, "race on the late device: ", text);
}

Key current(c10::DeviceIndex device) { return key_of(device, stream_now[device]); }

int64_t launch(Key key, double seconds) {
  auto& stream = streams[key];
  join(stream.known, host_known);
  stream.known[key] = ++stream.launched;
  stream.seconds = std::max(stream.seconds, host_seconds) + seconds;
  return stream.launched;
}

Block* block_of(const void* pointer) {
  auto found = blocks.upper_bound(static_cast<char*>(const_cast<void*>(pointer)));
  if (found == blocks.begin()) return nullptr;
  auto& block = std::prev(found)->second;
  return pointer < block.start + std::max<size_t>(block.size, 1) ? &block : nullptr;
}

void arrive(Block& block, const Clock& known) {
  auto& waiting = block.arriving;
  while (!waiting.empty() && knows(known, waiting.front().stream, waiting.front().work)) {
    auto copy = waiting.front();
    waiting.erase(waiting.begin());
    copy.bytes.copy_(copy.host);
  }
}

void use(const at::Tensor& tensor, Key key, bool writes) {  // by the work that was launched last in a stream
  auto block = block_of(tensor.storage().data());
  if (!block) return;
  auto& stream = streams[key];
  const char* how = writes ? " writes" : " reads";
  arrive(*block, stream.known);
  if (!block->arriving.empty())
    race(name_of(key) + how + " what a copy from the host in " + name_of(block->arriving.front().stream) +
         " may still write");
  if (!knows(stream.known, block->writer, block->written))
    race(name_of(key) + how + " what " + name_of(block->writer) + " may still write");
  if (!writes) {
    block->readers[key] = stream.launched;
    return;
  }
  for (auto [reader, work] : block->readers)
    if (!knows(stream.known, reader, work)) race(name_of(key) + " writes what " + name_of(reader) + " may still read");
  block->readers.clear();
  block->writer = key;
  block->written = stream.launched;
}

void host_learns(const Clock& clock, double seconds) {
  join(host_known, clock);
  host_seconds = std::max(host_seconds, seconds);
  for (auto copy = landing.begin(); copy != landing.end();) {
    if (knows(host_known, copy->stream, copy->work)) {
      auto landed = *copy;
      copy = landing.erase(copy);
      landed.host.copy_(landed.bytes);
    } else {
      ++copy;
    }
  }
  for (auto& [start, block] : blocks) arrive(block, host_known);
}

void host_waits(Key key) {
  counts["waits"]++;
  auto& stream = streams[key];
  join(stream.known, host_known);
  host_learns(stream.known, stream.seconds);
}

// Memory

struct LateAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    Guard guard(lock);
    auto& memory = memories[device_now];
    if (memory.used + size > memory.capacity) {
      memory.failures++;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "late device out of memory. Tried to allocate ", size, " bytes; ",
                       memory.used, " of ", memory.capacity, " are in use");
    }
    char* start = static_cast<char*>(::aligned_alloc(64, (size / 64 + 1) * 64));
    std::memset(start, kPoison, size);
    auto owner = current(device_now);
    blocks[start] = Block{start, size, owner, owner, streams[owner].launched, {}, {}, {}};
    memory.used += size;
    memory.peak = std::max(memory.peak, memory.used);
    counts["allocations"]++;
    return {start, start, &LateAllocator::release, c10::Device(kLate, device_now)};
  }
  static void release(void* pointer) {
    Guard guard(lock);
    auto found = blocks.find(static_cast<char*>(pointer));
    auto block = found->second;
    auto freed = block.readers;
    freed[block.writer] = std::max(freed[block.writer], block.written);
    for (auto& copy : block.arriving) freed[copy.stream] = std::max(freed[copy.stream], copy.work);
    for (auto [user, work] : freed)
      if (!block.recorded.count(user) && !knows(streams[block.owner].known, user, work) &&
          !knows(host_known, user, work))
        note_race("memory of " + name_of(block.owner) + " is freed while " + name_of(user) +
                  " may still use it, without record_stream");
    memories[block.owner >> 32].used -= block.size;
    blocks.erase(found);
    std::memset(block.start, kPoison, block.size);
    ::free(block.start);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &LateAllocator::release; }
  void copy_data(void* target, const void* source, std::size_t size) const override {
    std::memcpy(target, source, size);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    Guard guard(lock);
    if (auto block = block_of(data.get())) block->recorded.insert(key_of(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    Guard guard(lock);
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& memory = memories[device];
    for (auto each : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      each->at(0).current = int64_t(memory.used);
      each->at(0).peak = int64_t(memory.peak);
    }
    stats.num_ooms = memory.failures;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { memories[device].failures = 0; }
  void resetPeakStats(c10::DeviceIndex device) override { memories[device].peak = memories[device].used; }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    auto& memory = memories[device];
    return {memory.capacity - memory.used, memory.capacity};
  }
};

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    Guard guard(lock);
    char* start = static_cast<char*>(::aligned_alloc(64, (size / 64 + 1) * 64));
    pinned[start] = size;
    counts["pinned"]++;
    return {start, start, &PinnedAllocator::release, c10::Device(c10::DeviceType::CPU)};
  }
  static void release(
      void* pointer) {  // the copies that wait hold their tensors, as CUDA's allocator records its events
    Guard guard(lock);
    auto found = pinned.find(static_cast<char*>(pointer));
    std::memset(pointer, kPoison, found->second);
    pinned.erase(found);
    ::free(pointer);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedAllocator::release; }
  void copy_data(void* target, const void* source, std::size_t size) const override {
    std::memcpy(target, source, size);
  }
};

LateAllocator allocator;
PinnedAllocator pinned_allocator;

bool is_pinned(const void* pointer) {
  Guard guard(lock);
  auto found = pinned.upper_bound(static_cast<char*>(const_cast<void*>(pointer)));
  if (found == pinned.begin()) return false;
  auto [start, size] = *std::prev(found);
  return pointer < start + std::max<size_t>(size, 1);
}

// Devices, streams, events

struct LateGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kLate; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = device_now;
    if (device.has_index()) device_now = device.index();
    return {kLate, before};
  }
  c10::Device getDevice() const override { return {kLate, device_now}; }
  void setDevice(c10::Device device) const override { exchangeDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchangeDevice(device); }
  c10::Stream getStream(c10::Device device) const override {
    auto index = device.has_index() ? device.index() : device_now;
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kLate, index), stream_now[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kLate, device.has_index() ? device.index() : device_now), 0);
  }
  c10::Stream getNewStream(c10::Device device, int = 0) const override {
    Guard guard(lock);
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kLate, device.has_index() ? device.index() : device_now),
                       next_stream++);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool = false) const override { return getNewStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto before = getStream(stream.device());
    stream_now[stream.device_index()] = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void** pointer, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    Guard guard(lock);
    if (!*pointer) *pointer = new Event;
    auto key = key_of(stream);
    auto& from = streams[key];
    join(from.known, host_known);
    *static_cast<Event*>(*pointer) =
        Event{key, from.launched, from.known, std::max(from.seconds, host_seconds), true, 0};
  }
  void block(void* pointer, const c10::Stream& stream) const override {
    Guard guard(lock);
    auto event = static_cast<Event*>(pointer);
    if (!event || !event->is_recorded) return;
    auto& waiting = streams[key_of(stream)];
    join(waiting.known, event->known);
    waiting.seconds = std::max(waiting.seconds, event->seconds);
  }
  bool queryEvent(void* pointer) const override {  // the device gets there, but not at once
    Guard guard(lock);
    auto event = static_cast<Event*>(pointer);
    if (!event || !event->is_recorded || knows(host_known, event->stream, event->work)) return true;
    if (event->polls++ < 2) return false;
    host_learns(event->known, event->seconds);
    return true;
  }
  void synchronizeEvent(void* pointer) const override {
    Guard guard(lock);
    counts["waits"]++;
    auto event = static_cast<Event*>(pointer);
    if (event && event->is_recorded) host_learns(event->known, event->seconds);
  }
  void destroyEvent(void* pointer, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(pointer);
  }
  bool queryStream(const c10::Stream& stream) const override {
    Guard guard(lock);
    auto key = key_of(stream);
    return knows(host_known, key, streams[key].launched);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Guard guard(lock);
    host_waits(key_of(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    Guard guard(lock);
    for (auto& [key, stream] : streams)
      if (key >> 32 == device) host_waits(key);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    allocator.recordStream(data, stream);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    Guard guard(lock);
    auto one = static_cast<Event*>(first), other = static_cast<Event*>(second);
    TORCH_CHECK(one && other && one->is_recorded && other->is_recorded, "an event without a record has no time");
    for (auto event : {one, other})
      TORCH_CHECK(knows(host_known, event->stream, event->work),
                  "the host has not waited for an event whose time it asks");
    return (other->seconds - one->seconds) * 1e3;
  }
};

struct LateHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return device_now; }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchangeDevice(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    TORCH_CHECK(device < kDevices, "there is no device late:", int(device));
    auto before = device_now;
    if (device >= 0) device_now = device;
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  c10::Device getDeviceFromPtr(void* pointer) const override {
    Guard guard(lock);
    auto block = block_of(pointer);
    return {kLate, c10::DeviceIndex(block ? block->owner >> 32 : 0)};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device = -1) const override {
    static std::vector<at::Generator> generators = [] {
      std::vector<at::Generator> made;
      for (int each = 0; each < kDevices; each++) made.push_back(at::detail::createCPUGenerator(67280421310721 + each));
      return made;
    }();
    return generators[device < 0 ? device_now : device];
  }
  at::Generator getNewGenerator(c10::DeviceIndex = -1) const override { return at::detail::createCPUGenerator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    c10::OptionalDeviceGuard guard(storage.device());
    auto data = allocator.allocate(size);
    std::memcpy(data.get(), storage.data(), std::min(size, storage.nbytes()));
    const_cast<c10::Storage&>(storage).set_data_ptr(std::move(data));
    const_cast<c10::Storage&>(storage).set_nbytes(size);
  }
};

LateHooks hooks;

// Tensors

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

bool is_late(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kLate; }

at::Tensor same_bytes(const at::Tensor& tensor, const c10::Storage& storage, c10::DispatchKeySet keys) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, tensor.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return view;
}

at::Tensor host_view(const at::Tensor& tensor) {  // lives as long as the memory that it shows
  auto data = c10::DataPtr(const_cast<void*>(tensor.storage().data()), c10::Device(c10::DeviceType::CPU));
  auto storage =
      c10::Storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data), nullptr, false);
  auto view = same_bytes(tensor, storage, c10::DispatchKeySet(c10::DispatchKey::CPU));
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

at::Tensor empty_memory_format(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                               std::optional<at::Device> device, std::optional<bool>,
                               std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator, kKeys, c10::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator,
                                           kKeys, c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  Guard guard(lock);
  auto device = is_late(target) ? target.device() : source.device();
  auto key = current(device.index());
  auto from = is_late(source) ? host_view(source) : source;
  if (is_late(source) && is_late(target)) {
    auto other = current(source.device().index());
    if (other != key) join(streams[key].known, streams[other].known);
    launch(key, kernel_seconds);
    use(source, key, false);
    use(target, key, true);
    host_view(target).copy_(from);
    if (other != key) join(streams[other].known, streams[key].known);
    return target;
  }
  auto work = launch(key, kernel_seconds + double(target.nbytes()) * byte_seconds);
  if (is_late(target)) {
    counts["to_device"]++;
    use(target, key, true);
    auto block = block_of(target.storage().data());
    if (non_blocking && block && is_pinned(from.storage().data())) {
      counts["to_device_later"]++;
      auto bytes = host_view(target);
      bytes.view(at::kByte).fill_(kPoison);
      block->arriving.push_back({key, work, from, bytes});
      return target;
    }
    host_view(target).copy_(from);
    return target;
  }
  counts["to_host"]++;
  use(source, key, false);
  if (!non_blocking) {
    host_waits(key);
    target.copy_(from);
    return target;
  }
  counts["to_host_later"]++;
  auto bytes = at::empty(target.sizes(), target.options().pinned_memory(false)).copy_(from);
  if (target.is_contiguous() && target.numel()) std::memset(target.data_ptr(), kPoison, target.nbytes());
  landing.push_back({key, work, target, bytes});
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  Guard guard(lock);
  auto key = current(tensor.device().index());
  launch(key, kernel_seconds);
  use(tensor, key, false);
  host_waits(key);
  return host_view(tensor).item();
}

const at::Tensor& resize(const at::Tensor& tensor, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(tensor, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return tensor;
}

at::Tensor& set_whole_storage(at::Tensor& tensor, at::Storage storage) {
  c10::SymInt items = int64_t(storage.nbytes() / tensor.dtype().itemsize());
  return set_storage(tensor, std::move(storage), 0, {items}, {1});
}

at::Tensor as_strided(const at::Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(tensor, size, stride, offset);
}

at::Tensor reshape_alias(const at::Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::cpu::as_strided_symint(tensor, size, stride, std::nullopt);
}

void record_stream(at::Tensor& tensor, at::Stream stream) {
  allocator.recordStream(tensor.storage().data_ptr(), stream);
}

at::Tensor view(const at::Tensor& tensor, c10::SymIntArrayRef size) {
  return at::native::view(tensor, C10_AS_INTARRAYREF_SLOW(size));
}

// Operators: the CPU's kernels, on the same bytes.

struct Argument {
  at::Tensor late, host;
  bool writes, is_out;
};

class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack) : op_(op), stack_(stack) {}

  void run() {
    Guard guard(lock);
    counts["kernels"]++;
    auto count = op_.schema().arguments().size(), first = stack_->size() - count;
    for (size_t each = 0; each < count; each++) find_device((*stack_)[first + each]);
    c10::OptionalDeviceGuard on(c10::Device(kLate, device_));
    auto key = current(device_);
    launch(key, kernel_seconds);
    for (size_t each = 0; each < count; each++) to_host((*stack_)[first + each], op_.schema().arguments()[each]);
    for (auto& each : arguments_) use(each.late, key, each.writes);
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
    auto results = op_.schema().returns().size(), start = stack_->size() - results;
    for (size_t each = 0; each < results; each++) to_device((*stack_)[start + each], key);
    if (tells_host_) host_waits(key);
  }

 private:
  void find_device(const c10::IValue& value) {
    if (device_ >= 0) return;
    if (value.isTensor() && is_late(value.toTensor())) device_ = value.toTensor().device().index();
    if (value.isTensorList())
      for (const at::Tensor& each : value.toTensorList())
        if (device_ < 0 && is_late(each)) device_ = each.device().index();
    if (value.isOptionalTensorList())
      for (const std::optional<at::Tensor>& each : value.toOptionalTensorList())
        if (device_ < 0 && each && is_late(*each)) device_ = each->device().index();
    if (value.isDevice() && value.toDevice().type() == kLate)
      device_ = value.toDevice().has_index() ? value.toDevice().index() : device_now;
  }

  at::Tensor host_of(const at::Tensor& tensor, const c10::Argument& argument) {
    if (!tensor.defined()) return tensor;
    if (!is_late(tensor)) {
      bool may_be_on_host = tensor.dim() == 0 || op_.schema().name().find("index") != std::string::npos;
      TORCH_CHECK(may_be_on_host, op_.schema().name(), ": expected all tensors on late:", int(device_),
                  ", found one on ", tensor.device());
      return tensor;
    }
    TORCH_CHECK(tensor.device().index() == device_, op_.schema().name(),
                ": expected all tensors on late:", int(device_), ", found one on ", tensor.device());
    bool writes = argument.alias_info() && argument.alias_info()->isWrite();
    bool is_out = argument.is_out() && !argument.type()->isSubtypeOf(c10::ListType::ofTensors());
    arguments_.push_back(
        {tensor, is_out ? at::empty({0}, tensor.options().device(at::kCPU)) : host_view(tensor), writes, is_out});
    return arguments_.back().host;
  }

  void to_host(c10::IValue& value, const c10::Argument& argument) {
    if (value.isTensor()) {
      value = host_of(value.toTensor(), argument);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : value.toTensorList()) list.push_back(host_of(each, argument));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& each : value.toOptionalTensorList())
        list.push_back(each ? std::optional<at::Tensor>(host_of(*each, argument)) : std::nullopt);
      value = list;
    } else if (value.isDevice()) {
      value = c10::Device(c10::DeviceType::CPU);
    } else if (value.isNone() && argument.type()->isSubtypeOf(c10::OptionalType::create(c10::GeneratorType::get()))) {
      if (argument.name() == "generator") value = hooks.getDefaultGenerator(device_);
    }
  }

  at::Tensor device_of(const at::Tensor& result, Key key) {
    if (!result.defined()) return result;
    for (auto& each : arguments_) {
      if (each.is_out && each.host.is_same(result)) {
        each.late.resize_(result.sizes());
        host_view(each.late).copy_(result);
        return each.late;
      }
      if (each.host.storage().data() != result.storage().data() || result.nbytes() == 0) continue;
      if (each.writes && each.host.is_same(result)) return each.late;
      return same_bytes(result, each.late.storage(), kKeys);
    }
    at::Tensor made =
        at::detail::empty_strided_generic(result.sizes(), result.strides(), &allocator, kKeys, result.scalar_type());
    use(made, key, true);
    host_view(made).copy_(result);
    return made;
  }

  void to_device(c10::IValue& value, Key key) {
    if (value.isTensor()) {
      value = device_of(value.toTensor(), key);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : value.toTensorList()) list.push_back(device_of(each, key));
      value = list;
    } else if (!value.isNone()) {
      tells_host_ = true;  // a number, which the host can only know after waiting
    }
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  c10::DeviceIndex device_ = -1;
  std::vector<Argument> arguments_;
  bool tells_host_ = false;
};

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op, stack).run(); }

// The CPU has no kernel of these names.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  torch::jit::Stack stack;
  torch::jit::push(stack, input, weight, bias, stride.vec(), padding.vec(), dilation.vec(), transposed,
                   output_padding.vec(), groups);
  Call(op, &stack).run();
  return stack.back().toTensor();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> mask) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  torch::jit::Stack stack;
  auto channels = transposed ? weight.size(1) * groups.expect_int() : weight.size(0);
  torch::jit::push(stack, gradient, input, weight, std::vector<int64_t>{channels}, stride.vec(), padding.vec(),
                   dilation.vec(), transposed, output_padding.vec(), groups, mask);
  Call(op, &stack).run();
  auto results = torch::jit::last(stack, 3);
  auto result = [&](int each) { return mask[each] ? results[each].toTensor() : at::Tensor(); };
  return {result(0), result(1), result(2)};
}

// Collectives: gloo's, in a stream of their own; `wait` lets the current stream wait for it, and not the host.

class LateWork final : public c10d::Work {
 public:
  LateWork(Key key, std::vector<at::Tensor> results) : key_(key), results_(std::move(results)) {
    std::vector<c10::Device> devices{c10::Device(kLate, c10::DeviceIndex(key >> 32))};
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    LateGuard guard;
    auto before = guard.exchangeStream(c10::Stream(c10::Stream::UNSAFE, devices[0], key & 0xffffffff));
    future_->markCompleted(c10::IValue(results_));
    guard.exchangeStream(before);
  }
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds = kNoTimeout) override {
    synchronize();
    return true;
  }
  void synchronize() override {
    Guard guard(lock);
    auto& stream = streams[current(c10::DeviceIndex(key_ >> 32))];
    join(stream.known, streams[key_].known);
    stream.seconds = std::max(stream.seconds, streams[key_].seconds);
  }
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  Key key_;
  std::vector<at::Tensor> results_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class LateBackend final : public c10d::Backend {
 public:
  explicit LateBackend(c10::intrusive_ptr<c10d::Backend> gloo)
      : c10d::Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}
  const std::string getBackendName() const override { return "late"; }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    return collect({}, tensors, [&](auto&, auto& outputs) { return gloo_->broadcast(outputs, options); });
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    return collect({}, tensors, [&](auto&, auto& outputs) { return gloo_->allreduce(outputs, options); });
  }
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) override {
    return collect({}, tensors, [&](auto&, auto& outputs) { return gloo_->reduce(outputs, options); });
  }
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override {
    return collect(inputs, outputs[0], [&](auto& from, auto& to) {
      std::vector<std::vector<at::Tensor>> lists{to};
      return gloo_->allgather(lists, from, options);
    });
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    return collect({input}, {output},
                   [&](auto& from, auto& to) { return gloo_->_allgather_base(to[0], from[0], options); });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    return collect({input}, {output},
                   [&](auto& from, auto& to) { return gloo_->_reduce_scatter_base(to[0], from[0], options); });
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    c10d::BarrierOptions plain = options;
    plain.device_ids.clear();
    plain.device = std::nullopt;
    return gloo_->barrier(plain);
  }

 private:
  template <typename Run>
  c10::intrusive_ptr<c10d::Work> collect(std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs, Run run) {
    auto device = outputs.at(0).device().index();
    std::vector<at::Tensor> from, to;
    Key key;
    {
      Guard guard(lock);
      counts["collectives"]++;
      key = key_of(device, stream_);
      join(streams[key].known, streams[current(device)].known);
      launch(key, kernel_seconds);
      for (auto& each : inputs) use(each, key, false), from.push_back(host_view(each));
      for (auto& each : outputs) use(each, key, true), to.push_back(host_view(each));
      for (auto list : {&inputs, &outputs})
        for (auto& each : *list) block_of(each.storage().data())->recorded.insert(key);
    }
    run(from, to)->wait();  // without the lock: the other rank may be a thread
    return c10::make_intrusive<LateWork>(key, outputs);
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  int64_t stream_ = next_stream++;
};

}  // namespace

REGISTER_ALLOCATOR(kLate, &allocator);
C10_REGISTER_GUARD_IMPL(PrivateUse1, LateGuard);

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty_memory_format);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar);
  library.impl("as_strided", as_strided);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("view", view);
  library.impl("record_stream", record_stream);
  library.impl("resize_", resize);
  library.impl("set_.source_Storage", set_whole_storage);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
}

// `copy_from` heeds both bits; to resolve one, PyTorch would copy, and come back here.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  using at::autocast::CastPolicy;
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
  KERNEL_PRIVATEUSEONE(nll_loss, fp32)
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  at::RegisterPrivateUse1HooksInterface(&hooks);
  module.def("counts", [] {
    Guard guard(lock);
    return counts;
  });
  module.def("races", [] {
    Guard guard(lock);
    return races;
  });
  module.def("forget", [] {
    Guard guard(lock);
    races.clear();
    counts.clear();
  });
  module.def("set_capacity", [](int device, size_t bytes) { memories[device].capacity = bytes; });
  module.def("set_byte_seconds", [](double seconds) { byte_seconds = seconds; });
  module.def("set_device", [](int device) { hooks.exchangeDevice(c10::DeviceIndex(device)); });
  module.def("current_device", [] { return int(device_now); });
  module.def("default_generator", [](int device) { return hooks.getDefaultGenerator(c10::DeviceIndex(device)); });
  module.def("backend", [](c10::intrusive_ptr<c10d::Backend> gloo) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<LateBackend>(gloo);
  });
}
