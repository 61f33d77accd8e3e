// A stand-in for libcuda.so.1: it takes what Triton's launcher asks of the driver, checks it as an H100 would, and logs
// it to FAKECUDA_LOG. build.py adds the other functions that PyTorch links to, which do nothing.
#include "cuda.h"

#include <elf.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SHARED = 232448, SHARED = 49152, REGISTERS = 65536, MOST_THREADS = 1024 };

typedef struct {
  const char *image;  // the cubin, an ELF file
} Module;

typedef struct {
  char name[256];
  int registers, most_threads, own_shared, more_shared;
} Function;

static void log_line(const char *format, ...) {
  static FILE *file;
  if (!file) {
    const char *path = getenv("FAKECUDA_LOG");
    file = path ? fopen(path, "a") : NULL;
    if (!file) file = stderr;
    setvbuf(file, NULL, _IOLBF, 0);
  }
  va_list arguments;
  va_start(arguments, format);
  vfprintf(file, format, arguments);
  va_end(arguments);
}

// ---- devices and contexts

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int *out) {
  *out = 13000;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **out) {
  *out = "an error of the pretended driver";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *out, int index) {
  *out = index;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *out) {
  const char *given = getenv("FAKEGPU_DEVICES");
  *out = given ? atoi(given) : 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *out = MOST_SHARED; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *out = 233472; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *out = REGISTERS; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *out = 132; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *out = 32; break;
    default: *out = 1000;
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
  *out = (CUcontext)1;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *out) {
  *out = (CUcontext)1;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *out) {
  *out = 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) { return CUDA_SUCCESS; }

CUresult cuCtxGetLimit(size_t *out, CUlimit limit) {
  *out = 1 << 20;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr pointer) {
  *(CUdeviceptr *)out = pointer;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **out, CUdeviceptr pointer) {
  for (unsigned i = 0; i < count; i++) cuPointerGetAttribute(out[i], attributes[i], pointer);
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *out) {
  *out = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

// ---- modules and functions

CUresult cuModuleLoadData(CUmodule *out, const void *data) {
  const Elf64_Ehdr *header = data;
  if (memcmp(header->e_ident, ELFMAG, SELFMAG)) return CUDA_ERROR_INVALID_IMAGE;
  const size_t size = header->e_shoff + (size_t)header->e_shentsize * header->e_shnum;
  char *image = malloc(size);
  memcpy(image, data, size);
  Module *module = calloc(1, sizeof *module);
  module->image = image;
  *out = (CUmodule)module;
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }

enum { VALUES = 4, REGISTER_COUNT = 0x2f };  // of a record in .nv.info: it has a size, and what it is about

// Return a kernel's number of registers: .nv.info has records of two bytes (kind, attribute) and a size, of which one
// for each kernel holds the index of its symbol and the number.
static int registers_of(const char *image, const char *name) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
  const char *section_names = image + sections[header->e_shstrndx].sh_offset;
  const Elf64_Sym *symbols = NULL;
  const char *symbol_names = NULL;
  for (int i = 0; i < header->e_shnum; i++)
    if (sections[i].sh_type == SHT_SYMTAB) {
      symbols = (const Elf64_Sym *)(image + sections[i].sh_offset);
      symbol_names = image + sections[sections[i].sh_link].sh_offset;
    }
  for (int i = 0; symbols && i < header->e_shnum; i++) {
    if (strcmp(section_names + sections[i].sh_name, ".nv.info")) continue;
    const unsigned char *at = (const unsigned char *)image + sections[i].sh_offset, *end = at + sections[i].sh_size;
    while (at + 4 <= end) {
      const int size = at[0] == VALUES ? at[2] | at[3] << 8 : 0;
      unsigned about[2];
      if (at[0] == VALUES && at[1] == REGISTER_COUNT && size == sizeof about) {
        memcpy(about, at + 4, sizeof about);
        if (!strcmp(symbol_names + symbols[about[0]].st_name, name)) return (int)about[1];
      }
      at += 4 + size;
    }
  }
  return 0;
}

// A cubin names a kernel's code .text.NAME, with its number of registers in the high byte of sh_info until CUDA 12, and
// its own shared memory .nv.shared.NAME.
CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  const char *image = ((Module *)module)->image;
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
  const char *section_names = image + sections[header->e_shstrndx].sh_offset;
  char code[300], shared[300];
  snprintf(code, sizeof code, ".text.%s", name);
  snprintf(shared, sizeof shared, ".nv.shared.%s", name);
  Function *function = calloc(1, sizeof *function);
  snprintf(function->name, sizeof function->name, "%s", name);
  int found = 0;
  for (int i = 0; i < header->e_shnum; i++) {
    const char *section = section_names + sections[i].sh_name;
    if (!strcmp(section, code)) {
      function->registers = sections[i].sh_info >> 24;
      found = 1;
    }
    if (!strcmp(section, shared)) function->own_shared = (int)sections[i].sh_size;
  }
  if (!function->registers) function->registers = registers_of(image, name);
  // Registers are allocated in groups of eight a thread, and threads in groups of 128.
  const int registers = (function->registers + 7) / 8 * 8;
  const int threads = registers ? REGISTERS / registers / 128 * 128 : MOST_THREADS;
  function->most_threads = threads < MOST_THREADS ? threads : MOST_THREADS;
  *out = (CUfunction)function;
  return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncGetAttribute(int *out, CUfunction_attribute attribute, CUfunction handle) {
  const Function *function = (const Function *)handle;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *out = function->registers; break;
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *out = function->most_threads; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *out = function->own_shared; break;
    default: *out = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  Function *function = (Function *)handle;
  if (attribute == 17) return CUDA_ERROR_INVALID_VALUE;  // shared memory beyond the usual, which an H100 does not have
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  if (value + function->own_shared > MOST_SHARED) return CUDA_ERROR_INVALID_VALUE;
  function->more_shared = value;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }

CUresult cuOccupancyMaxActiveClusters(int *out, CUfunction function, const CUlaunchConfig *config) {
  *out = 1;
  return CUDA_SUCCESS;
}

// ---- launches

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction handle, void **parameters, void **extra) {
  const Function *function = (const Function *)handle;
  const unsigned x = config->gridDimX, y = config->gridDimY, z = config->gridDimZ;
  const unsigned most_shared = function->more_shared ? function->more_shared : SHARED;
  const int grid = x >= 1 && y >= 1 && z >= 1 && x <= 2147483647u && y <= 65535 && z <= 65535;
  const int possible =
      grid && config->sharedMemBytes <= most_shared && config->blockDimX <= (unsigned)function->most_threads &&
      function->registers > 0;
  log_line("launch %s grid %u %u %u block %u shared %u regs %d%s\n", function->name, x, y, z, config->blockDimX,
           config->sharedMemBytes, function->registers, possible ? "" : " BAD");
  return possible ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void add_if(int wrong, char *why, const char *what) {
  if (wrong && strlen(why) + strlen(what) < 199) strcat(why, what);
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
  const int widest[] = {1 << 20, 32, 64, 128};  // bytes of a box's row, for each swizzle
  const int item = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
  const int row = (int)box[0] * item;
  char why[200] = "";
  add_if((size_t)address % 16 != 0, why, " address");
  for (unsigned i = 0; i + 1 < rank; i++) {
    add_if(strides[i] % 16 || strides[i] >= (1ull << 40), why, " stride");
    add_if(i && strides[i] % strides[i - 1], why, " stride-multiple");
  }
  for (unsigned i = 0; i < rank; i++) {
    add_if(sizes[i] < 1 || sizes[i] > (1ull << 32), why, " size");
    add_if(box[i] < 1 || box[i] > 256, why, " box");
    add_if(element_strides[i] < 1 || element_strides[i] > 8, why, " element-stride");
  }
  add_if(row % 16 != 0, why, " inner-box-16");
  add_if(row > widest[swizzle], why, " inner-box-swizzle");
  const int flat = rank < 2;
  log_line("tensormap rank %u sizes %llu %llu stride %llu box %u %u swizzle %d%s%s\n", rank,
           (unsigned long long)sizes[0], flat ? 0ull : (unsigned long long)sizes[1],
           flat ? 0ull : (unsigned long long)strides[0], box[0], flat ? 0u : box[1], swizzle, *why ? " BAD" : "", why);
  memset(out, 0, sizeof *out);
  return *why ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
