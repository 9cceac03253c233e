// The operators of the late device: PyTorch's CPU kernels on the same bytes, each noted in the book.

#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <torch/library.h>

#include "late_streams.h"

namespace late {

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
      if (bytes.is_contiguous() && bytes.numel()) std::memset(bytes.data_ptr(), kPoison, bytes.nbytes());
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
      bool may_be_on_host = tensor.dim() == 0 || argument.type()->isSubtypeOf(c10::ListType::ofOptionalTensors());
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

}  // namespace late
