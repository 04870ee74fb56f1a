# SPDX-License-Identifier: MIT
#
# Makes a C file of api.def that does not compile unless each row's name,
# version and flags are those of just that function in cudaTypedefs.h: a wrong
# one would give programs a wrapper for another ABI. What is newer than that
# cudaTypedefs.h is left out, and what other headers have.
BEGIN {
	FS = "[(), \t]+"
	print "#include \"base/newer.h\"\n\n#include <cudaTypedefs.h>"
}
/^#(if|endif)/ && inside { print }
/^(API|USE)\(cu(GL|VDPAU)/ { next }
/^(API|USE)\(/ {
	inside = 1
	gsub(/"/, "", $3)
	twin = $2 ~ /_ptds$/ ? "_ptds" : /PTSZ/ ? "_ptsz" : ""
	type = "PFN_" $3 "_v" $4 twin
	print "#if CUDA_VERSION >= " $4
	printf "_Static_assert(__builtin_types_compatible_p(%s,\n", type
	printf "\t__typeof__(&%s)), \"%s\");\n", $2, $2
	print "#endif"
}
END { print "int main(void)\n{\n\treturn 0;\n}" }
