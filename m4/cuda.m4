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
vs_cuda=
for vs_dir in "$with_cuda" "$CUDA_HOME" /usr/local/cuda \
    "${vs_nvcc_path%/bin/nvcc}"; do
	AS_IF([test -z "$vs_cuda" && test -n "$vs_dir" &&
	       test -f "$vs_dir/include/cuda.h"], [vs_cuda=$vs_dir])
done
AS_IF([test -z "$vs_cuda"],
	[AC_MSG_ERROR([no CUDA headers: give --with-cuda=DIR with DIR/include/cuda.h])])
AC_MSG_NOTICE([CUDA headers: $vs_cuda/include])
CUDA_CPPFLAGS="-isystem $vs_cuda/include"
NVCC=
AS_IF([test -x "$vs_cuda/bin/nvcc"], [NVCC="$vs_cuda/bin/nvcc"],
	[test -n "$vs_nvcc_path"], [NVCC="$vs_nvcc_path"])
AC_SUBST([CUDA_CPPFLAGS])
AC_SUBST([NVCC])
AM_CONDITIONAL([HAVE_NVCC], [test -n "$NVCC"])
])
