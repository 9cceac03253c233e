// The book of the late device: streams, events, memory, and who knows what has ended; `late_device.cpp` has the rules.

#pragma once

#include <Python.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ATen.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <pthread.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <new>
#include <set>

namespace late {

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

struct Freed {  // memory that its stream may give again, and work of another stream that may still use it
  Key owner, user;
  int64_t work;
};

struct Held {  // memory that was freed, and that its allocator may give again once other streams have ended their work
  size_t size;
  Clock users;
};

struct Memory {
  std::vector<Held> held;
  size_t used = 0, peak = 0, capacity = size_t(1) << 40;
  int64_t failures = 0;
};

// All state, guarded by `lock`. Recursive: freeing a tensor while it is held calls the allocators.
std::recursive_mutex lock;
auto& streams =
    *new std::map<Key, Stream>;  // these live on at the exit of the process, for tensors that are freed then
auto& host_known = *new Clock;
double host_seconds = 0;
auto& blocks = *new std::map<char*, Block>;
auto& pinned = *new std::map<char*, size_t>;
auto& landing = *new std::vector<Copy>;
auto& freed = *new std::vector<Freed>;
auto& sources = *new std::vector<Copy>;  // pinned memory that was read, and what it held, until the host knows of it
auto& races = *new std::vector<std::string>;
auto& counts = *new std::map<std::string, int64_t>;
Memory memories[kDevices];
double kernel_seconds = 1e-5, byte_seconds = 1e-10;
int64_t next_stream = 1;
pid_t user = 0;  // the process that used the device first

thread_local c10::DeviceIndex device_now = 0;
thread_local int64_t stream_now[kDevices] = {};

// Takes the lock. Whoever waits for it gives Python's lock away: the one who holds it may need that, to free a tensor.
class Guard {
 public:
  explicit Guard(std::recursive_mutex& mutex) : mutex_(mutex) {
    if (mutex_.try_lock()) return;
    auto python = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    mutex_.lock();
    if (python) PyEval_RestoreThread(python);
  }
  ~Guard() { mutex_.unlock(); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  std::recursive_mutex& mutex_;
};

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
  if (!user) user = getpid();
  TORCH_CHECK(user == getpid(), "the late device was used before this process was forked");
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
    sources.push_back({copy.stream, copy.work, copy.host, at::empty_like(copy.host).copy_(copy.host)});
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
  for (auto source = sources.begin(); source != sources.end();) {
    if (!knows(host_known, source->stream, source->work)) {
      ++source;
      continue;
    }
    auto read = *source;
    source = sources.erase(source);
    auto now = read.host.contiguous(), then = read.bytes.contiguous();
    if (std::memcmp(now.data_ptr(), then.data_ptr(), now.nbytes()))
      note_race("pinned memory was overwritten while a copy to " + name_of(read.stream) + " may still read it");
  }
}

void host_waits(Key key) {
  counts["waits"]++;
  auto& stream = streams[key];
  join(stream.known, host_known);
  host_learns(stream.known, stream.seconds);
}

// Memory

bool is_known(const Freed& memory) {
  return knows(streams[memory.owner].known, memory.user, memory.work) || knows(host_known, memory.user, memory.work);
}

size_t held_of(Memory& memory) {  // the bytes that wait for other streams, as far as the host knows
  std::erase_if(memory.held, [](auto& each) {
    return std::all_of(each.users.begin(), each.users.end(),
                       [](auto& user) { return knows(host_known, user.first, user.second); });
  });
  size_t sum = 0;
  for (auto& each : memory.held) sum += each.size;
  return sum;
}

struct LateAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    Guard guard(lock);
    auto& memory = memories[device_now];
    if (memory.used + held_of(memory) + size > memory.capacity && !memory.held.empty()) {
      counts["waits_for_memory"]++;
      for (auto& each : memory.held)
        for (auto [user, work] : each.users) host_waits(user);
      memory.held.clear();
    }
    if (memory.used + size > memory.capacity) {
      memory.failures++;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "late device out of memory. Tried to allocate ", size, " bytes; ",
                       memory.used, " of ", memory.capacity, " are in use");
    }
    char* start = static_cast<char*>(::aligned_alloc(64, (size / 64 + 1) * 64));
    std::memset(start, kPoison, size);
    auto owner = current(device_now);
    for (auto each = freed.begin(); each != freed.end();) {  // the new memory may be any of it
      if (each->owner != owner) {
        ++each;
        continue;
      }
      if (!is_known(*each))
        note_race("memory of " + name_of(owner) + " is given again while " + name_of(each->user) +
                  " may still use it, without record_stream");
      each = freed.erase(each);
    }
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
    auto used = block.readers;
    used[block.writer] = std::max(used[block.writer], block.written);
    for (auto& copy : block.arriving) used[copy.stream] = std::max(used[copy.stream], copy.work);
    Clock users;
    for (auto [user, work] : used) {
      Freed each{block.owner, user, work};
      if (is_known(each)) continue;
      if (block.recorded.count(user))
        users[user] = work;
      else
        freed.push_back(each);
    }
    auto& memory = memories[block.owner >> 32];
    memory.used -= block.size;
    if (!users.empty()) memory.held.push_back({block.size, users});
    if (memory.held.size() % 1000 == 999) held_of(memory);
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
    TORCH_CHECK(device.index() < kDevices, "there is no device late:", int(device.index()));
    auto before = device_now;
    if (device.has_index()) device_now = device.index();
    return {kLate, before};
  }
  c10::Device getDevice() const override { return {kLate, device_now}; }
  void setDevice(c10::Device device) const override { exchangeDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { device_now = device.index(); }
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
    Guard guard(lock);
    c10::OptionalDeviceGuard on(storage.device());
    if (auto block = block_of(storage.data())) arrive(*block, streams[current(device_now)].known);
    auto data = allocator.allocate(size);
    std::memcpy(data.get(), storage.data(), std::min(size, storage.nbytes()));
    const_cast<c10::Storage&>(storage).set_data_ptr(std::move(data));
    const_cast<c10::Storage&>(storage).set_nbytes(size);
  }
};

LateHooks hooks;

}  // namespace late
