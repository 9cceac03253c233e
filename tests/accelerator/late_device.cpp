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
// 4. Memory freed without record_stream while another stream may use it is a race once its owner stream allocates again
//    before that use is known to have ended. With record_stream the memory is given again once the use has ended; an
//    allocation that finds no other memory waits for that, and the wait is counted. Freed and new memory holds 0xFF:
//    NaN as a float.
// 5. Time is virtual: a kernel and a byte of a copy take fixed seconds, in the stream that they run in.
//
// All operators run PyTorch's CPU kernels on the same bytes.

#include <ATen/autocast_mode.h>
#include <torch/csrc/utils/pybind.h>

#include "late_collectives.h"

using namespace late;

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
  // A child has one thread, and may free tensors; another thread of its parent may have held the lock.
  pthread_atfork(nullptr, nullptr, [] { new (&lock) std::recursive_mutex; });
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
  module.def("is_used", [] { return user == getpid(); });
  module.def("was_used_before_fork", [] { return user && user != getpid(); });
  module.def("set_device", [](int device) { hooks.exchangeDevice(c10::DeviceIndex(device)); });
  module.def("current_device", [] { return int(device_now); });
  module.def("default_generator", [](int device) { return hooks.getDefaultGenerator(c10::DeviceIndex(device)); });
  module.def("backend", [](c10::intrusive_ptr<c10d::Backend> gloo) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<LateBackend>(gloo);
  });
}
