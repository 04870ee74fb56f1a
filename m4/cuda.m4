# VS_CUDA
# -------
# Finds the CUDA Toolkit headers (nothing of CUDA is ever linked). Sets
# CUDA_CPPFLAGS, and NVCC (empty where there is none: the programs that need
# it are then left out). Order: --with-cuda, CUDA_HOME, /usr/local/cuda, the
# folder above nvcc.
AC_DEFUN([VS_CUDA], [
AC_ARG_WITH([cuda],
	[AS_HELP_STRING([--with-cuda=DIR], [CUDA Toolkit (DIR/include/cuda.h)])],
	[], [with_cuda=])
AC_PATH_PROG([vs_nvcc_path], [nvcc])
AS_IF([test -n "$with_cuda" && test ! -f "$with_cuda/include/cuda.h"],
	[AC_MSG_ERROR([no $with_cuda/include/cuda.h])])
vs_cuda=
for vs_dir in "$with_cuda" "$CUDA_HOME" /usr/local/cuda \
    "${vs_nvcc_path%/bin/nvcc}"; do
	AS_IF([test -z "$vs_cuda" && test -n "$vs_dir" &&
	       test -f "$vs_dir/include/cuda.h"], [vs_cuda=$vs_dir])
done
AS_IF([test -z "$vs_cuda"],
	[AC_MSG_ERROR([no CUDA headers: give --with-cuda=DIR with DIR/include/cuda.h])])
AS_CASE(["$vs_cuda"], [*[[[:space:]]]*],
	[AC_MSG_ERROR([no space may be in the path of the CUDA headers: $vs_cuda])])
AC_MSG_NOTICE([CUDA headers: $vs_cuda/include])
# /usr/include is searched anyway, and must keep its place in the order.
CUDA_CPPFLAGS=
AS_IF([test "$vs_cuda" != /usr],
	[CUDA_CPPFLAGS="-isystem $vs_cuda/include"])
vs_saved_CPPFLAGS=$CPPFLAGS
CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
AC_MSG_CHECKING([for CUDA headers of 12.5 or newer])
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
#include <cuda_runtime_api.h>
#include <cuda.h>
#if CUDA_VERSION < 12050
#error too old
#endif
]], [])],
	[AC_MSG_RESULT([yes])],
	[AC_MSG_RESULT([no])
	AC_MSG_ERROR([CUDA headers in $vs_cuda/include are older than 12.5 or incomplete])])
CPPFLAGS=$vs_saved_CPPFLAGS
NVCC=
AS_IF([test -x "$vs_cuda/bin/nvcc"], [NVCC="$vs_cuda/bin/nvcc"],
	[test -n "$vs_nvcc_path"], [NVCC="$vs_nvcc_path"])
# A toolkit without its compilers' host (g++) cannot build programs.
AS_IF([test -n "$NVCC"], [
	AC_MSG_CHECKING([whether $NVCC works])
	echo 'int main() { return 0; }' >conftest.cu
	AS_IF([$NVCC -o conftest.nvcc conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
		[AC_MSG_RESULT([yes])],
		[AC_MSG_RESULT([no]); NVCC=])
	rm -f conftest.cu conftest.nvcc
])
AC_SUBST([CUDA_CPPFLAGS])
AC_SUBST([NVCC])
])
