# SPDX-License-Identifier: MIT
#
# line.bash: a program of random calls under the shim on the simulated driver,
# which must end well and say one line. For chaos.test, crowd.test, fits.test and
# resets.test, of which each line is one surrounding.
# shellcheck shell=bash
build=${top_builddir:-.}
here=${srcdir:-.}
seed=${VS_FUZZ_SEED:-$(($(date +%s) % 1000000))}
status=0

line() { # PROGRAM [WITH-SIM OPTION OR VAR=VALUE]... -- [ARG]...
	local program=$1 words=() out
	shift
	while [ "$1" != -- ]; do
		words+=("$1")
		shift
	done
	shift
	seed=$((seed + 1))
	if ! out=$(timeout -k 5 120 "$here/tests/e2e/with-sim" "${words[@]}" \
		"$build/tests/fuzz/$program" --seed $seed "$@" 2>&1) ||
		[ "$(wc -l <<<"$out")" != 1 ]; then
		status=1
		printf 'FAILED with seed %d (%s; %s):\n' $seed "${words[*]-}" "$*"
	fi
	printf '%s\n' "$out" | tail -n 5
}
