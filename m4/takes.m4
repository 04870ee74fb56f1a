# VS_IF_TAKES(FLAG, BESIDE, IF-TAKEN)
# -----------------------------------
# IF-TAKEN is done where the compiler takes FLAG behind CFLAGS and BESIDE, which
# are -Werror where one that is not known may be warned of alone. CFLAGS are then
# what they were.
AC_DEFUN([VS_IF_TAKES], [
vs_takes_CFLAGS=$CFLAGS
CFLAGS="$CFLAGS $2 $1"
AC_MSG_CHECKING([whether $CC takes $1])
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])], [vs_takes=yes], [vs_takes=no])
CFLAGS=$vs_takes_CFLAGS
AC_MSG_RESULT([$vs_takes])
AS_IF([test "$vs_takes" = yes], [$3])
])
