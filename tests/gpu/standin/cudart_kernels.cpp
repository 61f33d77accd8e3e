// Kernels do nothing, but a launch that a device would not accept fails. The functions with two underscores are what
// nvcc's code calls to register kernels and to launch them.
#include <cstring>
#include <string>
#include <unordered_map>

#include "cudart.h"

namespace standin {
namespace {

struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};

std::unordered_map<const void*, std::string> names;
thread_local std::vector<Configuration> configurations;
long launches = 0;

bool is_possible(dim3 grid, dim3 block, size_t shared) {
  const size_t threads = size_t{block.x} * block.y * block.z;
  return grid.x && grid.y && grid.z && grid.y <= 65535 && grid.z <= 65535 && threads && threads <= 1024 &&
         shared <= kMostSharedBytes;
}

cudaError_t launch(const void* kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t handle) {
  Lock lock;
  launches++;
  if (!is_possible(grid, block, shared)) {
    const auto name = names.find(kernel);
    STANDIN_LOG("bad launch %s grid %u %u %u block %u %u %u shared %zu\n",
                name == names.end() ? "?" : name->second.c_str(), grid.x, grid.y, grid.z, block.x, block.y, block.z,
                shared);
    return fail(cudaErrorInvalidConfiguration, "launch");
  }
  Stream* stream = stream_of(handle);
  if (stream->capture) enqueue(stream, Node{Kind::kKernel});  // a graph counts its nodes
  return cudaSuccess;
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

long fakegpu_launches() { return launches; }

// ---- launches

cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void**, size_t shared, cudaStream_t stream) {
  return launch(kernel, grid, block, shared, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block, void**, size_t shared,
                                        cudaStream_t stream) {
  return launch(kernel, grid, block, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  return launch(kernel, config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t shared,
                               cudaStream_t stream) {
  return launch(kernel, grid, block, shared, stream);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const Configuration last = configurations.back();
  configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared = last.shared;
  *static_cast<void**>(stream) = last.stream;
  return cudaSuccess;
}

// ---- registration

void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}

void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, void*, void*, void*, void*,
                            int*) {
  names[kernel] = name;
}

cudaError_t __cudaGetKernel(cudaKernel_t* out, const void* kernel) {
  *out = static_cast<cudaKernel_t>(const_cast<void*>(kernel));
  return cudaSuccess;
}

// ---- attributes

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void*) {
  memset(out, 0, sizeof *out);
  out->maxThreadsPerBlock = 1024;
  out->numRegs = 32;
  out->ptxVersion = out->binaryVersion = 90;
  out->maxDynamicSharedSizeBytes = kSharedBytes;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* out, const void*, int, size_t) {
  *out = 2;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* out, const void*, int, size_t, unsigned) {
  *out = 2;
  return cudaSuccess;
}

// ---- libraries of kernels

static int placeholder;

cudaError_t cudaLibraryLoadData(cudaLibrary_t* out, const void*, cudaJitOption*, void**, unsigned, cudaLibraryOption*,
                                void**, unsigned) {
  *out = reinterpret_cast<cudaLibrary_t>(&placeholder);
  return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t* out, cudaLibrary_t, const char*) {
  *out = reinterpret_cast<cudaKernel_t>(&placeholder);
  return cudaSuccess;
}

cudaError_t cudaLibraryUnload(cudaLibrary_t) { return cudaSuccess; }

}  // extern "C"
