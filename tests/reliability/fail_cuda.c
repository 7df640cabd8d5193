// Makes calls of the CUDA driver fail, as after an illegal access, once the file $EBB_FAIL_FILE is
// there. Preloaded: whoever looks these functions up gets the ones below.
//
//   cc -shared -fPIC -o fail_cuda.so fail_cuda.c -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CUDA_ERROR_ILLEGAL_ADDRESS = 700 };

static int failing(void) {
  const char *file = getenv("EBB_FAIL_FILE");
  return file != NULL && access(file, F_OK) == 0;
}

typedef int (*Call)(void *, void *, void *, void *, void *, void *, void *, void *, void *, void *,
                    void *);

// Passes on as many arguments as any of them has; the callee looks at its own.
#define FAILING(name)                                                                             \
  static Call real_##name;                                                                        \
  static int name(void *a, void *b, void *c, void *d, void *e, void *f, void *g, void *h,        \
                  void *i, void *j, void *k) {                                                    \
    if (failing()) return CUDA_ERROR_ILLEGAL_ADDRESS;                                             \
    return real_##name(a, b, c, d, e, f, g, h, i, j, k);                                          \
  }

FAILING(cuGraphLaunch)
FAILING(cuLaunchKernel)
FAILING(cuLaunchKernelEx)
FAILING(cuEventSynchronize)
FAILING(cuStreamSynchronize)
FAILING(cuMemcpyHtoDAsync_v2)

void *dlsym(void *library, const char *symbol) {
  static void *(*real)(void *, const char *);
  if (real == NULL) {
    const char *versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    for (int i = 0; i < 3 && real == NULL; i++) {
      real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    }
  }
  void *found = real(library, symbol);
#define CHANGE(name)                                                                              \
  if (found != NULL && strcmp(symbol, #name) == 0) {                                              \
    real_##name = (Call)found;                                                                    \
    return (void *)name;                                                                          \
  }
  CHANGE(cuGraphLaunch)
  CHANGE(cuLaunchKernel)
  CHANGE(cuLaunchKernelEx)
  CHANGE(cuEventSynchronize)
  CHANGE(cuStreamSynchronize)
  CHANGE(cuMemcpyHtoDAsync_v2)
  return found;
}
