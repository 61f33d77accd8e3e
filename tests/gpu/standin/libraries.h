// The functions of NVIDIA's libraries whose results PyTorch reads; all others return 0. build.py defines LIBRARY_<name>
// for the library that it compiles, and writes the others behind these.
#include <stdlib.h>
#include <string.h>

// Of the stand-in for libcudart: write to a workspace in a stream's order, as a product's kernels would.
extern void fakegpu_touch(void *stream, void *workspace);

static long handle_of_all[64];

static int give_handle(void **out) {
  *out = handle_of_all;
  return 0;
}

#ifdef LIBRARY_cublas
typedef struct {
  void *stream, *workspace;
} Handle;

int cublasCreate_v2(Handle **out) {
  *out = calloc(1, sizeof(Handle));
  return 0;
}

int cublasSetStream_v2(Handle *handle, void *stream) {
  handle->stream = stream;
  return 0;
}

int cublasSetWorkspace_v2(Handle *handle, void *workspace, size_t bytes) {
  handle->workspace = workspace;
  return 0;
}

static int product(Handle *handle) {
  if (handle) fakegpu_touch(handle->stream, handle->workspace);
  return 0;
}
#endif

#ifdef LIBRARY_cublasLt
int cublasLtCreate(void **out) { return give_handle(out); }
long cublasLtGetVersion(void) { return 130100; }

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, char *results, int *count) {
  memset(results, 0, 128);
  *count = 1;
  return 0;
}

int cublasLtMatmul(void *handle, void *product, void *alpha, void *a, void *a_layout, void *b, void *b_layout,
                   void *beta, void *c, void *c_layout, void *d, void *d_layout, void *algorithm, void *workspace,
                   size_t bytes, void *stream) {
  if (bytes) fakegpu_touch(stream, workspace);
  return 0;
}
#endif

#ifdef LIBRARY_cudnn
int cudnnCreate(void **out) { return give_handle(out); }
size_t cudnnGetVersion(void) { return 91900; }
size_t cudnnGetCudartVersion(void) { return 13000; }
#endif

#ifdef LIBRARY_cusolver
int cusolverDnCreate(void **out) { return give_handle(out); }
#endif

#ifdef LIBRARY_nvrtc
int nvrtcVersion(int *major, int *minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
#endif

#ifdef LIBRARY_nccl
int ncclGetVersion(int *out) {
  *out = 22809;
  return 0;
}
#endif
