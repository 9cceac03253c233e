// Collectives: gloo's, in a stream of their own; `wait` lets the current stream wait for it, and not the host.

#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "late_operators.h"

namespace late {

class LateWork final : public c10d::Work {
 public:
  LateWork(Key key, std::vector<at::Tensor> results) : key_(key), results_(std::move(results)) {
    {
      Guard guard(lock);
      known_ = streams[key].known;  // of this collective: later ones of the stream are not waited for
      seconds_ = streams[key].seconds;
    }
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
    join(stream.known, known_);
    stream.seconds = std::max(stream.seconds, seconds_);
  }
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  Key key_;
  Clock known_;
  double seconds_ = 0;
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
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                 std::vector<at::Tensor>& inputs,
                                                                 const c10d::AllgatherOptions& options) override {
    return collect(inputs, outputs, [&](auto& from, auto& to) {
      return gloo_->allgather_into_tensor_coalesced(to, from, options);
    });
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

}  // namespace late
