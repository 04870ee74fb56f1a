# SPDX-License-Identifier: MIT
#
# same.bash: a program of random calls (SEED N_OPS) answers the same without and
# with the shim, in several surroundings. For sequence.test and runtime.test.
# shellcheck shell=bash
build=$(cd "${top_builddir:-.}" && pwd)
here=$(cd "${srcdir:-.}/tests/e2e" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
n_fail=0
n_pass=0
n_lines=0

# What the simulator says of a mistake of the program's has its address.
addresses() { sed 's/0x[0-9a-f]*/ADDRESS/g' "$1"; }

run() { # NAME [WITH-SIM OPTION OR VAR=VALUE]... -- SEED N_OPS
	local name=$1 words=()
	shift
	while [ "$1" != -- ]; do
		words+=("$1")
		shift
	done
	shift
	timeout -k 5 120 "$here/with-sim" ${words+"${words[@]}"} "$program" \
		"$@" >"$dir/$name" 2>"$dir/$name.err" </dev/null
	echo "exit $?" >>"$dir/$name"
}

# Allocations that the pool served, in all.
served() {
	grep -ohE '"(small|large)_(hit|miss)":[0-9]+' "$dir/stats" 2>/dev/null |
		awk -F: '{ sum += $2 } END { print sum + 0 }'
}

same() { # SEED N_OPS [VAR=VALUE]...
	local seed=$1 n_ops=$2
	shift 2
	program=$build/tests/sequence/$name
	# each third is built for per-thread default streams
	[ $((seed % 3)) != 0 ] || program+=_per_thread
	run plain --no-shim "$@" -- "$seed" "$n_ops"
	run shim --stats="$dir/stats" "$@" -- "$seed" "$n_ops"
	if [ -n "${KEEP-}" ]; then
		mkdir -p "$KEEP"
		cp "$dir/plain" "$KEEP/$seed.plain"
		cp "$dir/shim" "$KEEP/$seed.shim"
	fi
	if cmp -s "$dir/plain" "$dir/shim" &&
		cmp -s <(addresses "$dir/plain.err") \
			<(addresses "$dir/shim.err") &&
		[ "$(tail -n 1 "$dir/plain")" = "exit 0" ]; then
		n_pass=$((n_pass + 1))
		n_lines=$((n_lines + $(wc -l <"$dir/plain")))
		return
	fi
	n_fail=$((n_fail + 1))
	echo "FAILED: seed $seed, $n_ops operations ($*)" \
		"< without, > with the shim"
	awk 'NR == FNR { plain[FNR] = $0; next }
		plain[FNR] != $0 { print "< " plain[FNR]; print "> " $0; exit }' \
		"$dir/plain" "$dir/shim"
	grep -h 'WRONG at' "$dir/plain" | head -n 2
	head -n 4 "$dir/plain.err" "$dir/shim.err"
	tail -n 1 "$dir/plain" "$dir/shim"
}

# An allocation that fails is none of these: all is a quarter of the memory.
surroundings=(
	''
	'SIM_LAG_US=1000'
	'SIM_LAG_US=1000 VMMSHIM_REUSE=ordered SIM_JUDGE_MODE=ordered'
	'SIM_LAG_US=1000 VMMSHIM=sync'
	'SIM_LAG_US=1000 SIM_MEMORY=256M'
	'SIM_MEMORY=256M VMMSHIM_CHUNK_SIZE=2M'
	'SIM_LAG_US=1000 VMMSHIM_DECAY_MS=0 VMMSHIM_RELEASE_THRESHOLD=0'
	'SIM_LAG_US=1000 VMMSHIM_GUARD=1'
	'SIM_DEVICES=2 SIM_LAG_US=1000'
	'SIM_DEVICES=2 SIM_PEER=0 SIM_LAG_US=1000'
)

same_all() { # NAME N_SEEDS [SEED [N_OPS [VAR=VALUE]...]]
	local seed name=$1 n_seeds=$2
	shift 2
	if [ $# -gt 0 ]; then
		same "$1" "${2-300}" "${@:3}"
		[ $n_fail = 0 ] && echo "same: $n_lines lines"
		return $n_fail
	fi
	[ -z "${VS_WRAP-}${VS_SANITIZER-}" ] || n_seeds=8
	for ((seed = 1; seed <= n_seeds; seed++)); do
		# shellcheck disable=SC2086 # several words
		same $seed 600 SIM_MEMORY=2G \
			${surroundings[seed % ${#surroundings[@]}]}
	done
	echo "$n_pass passed ($n_lines lines, $(served) served), $n_fail failed"
	[ $n_fail = 0 ] && [ $n_pass -gt 0 ] && [ "$(served)" -gt 0 ]
}
