# SPDX-License-Identifier: MIT
#
# row.bash: one row of matrix.tap, whose variables it uses: the victim without
# and with the shim, and what must be the same. Prints a line of TAP.
# shellcheck shell=bash
# shellcheck disable=SC2154 # they are set there

comment() { sed "s/^/# /"; }

# A bad free of the program itself is told by the simulator with its address.
addresses() { sed 's/0x[0-9a-f]*/ADDRESS/g' "$1"; }

# Allocations that the pool served, over all dumps of a file.
served() {
	grep -oE '"(small|large)_(hit|miss)":[0-9]+' "$1" 2>/dev/null |
		awk -F: '{ sum += $2 } END { print sum + 0 }'
}

# row NAME EXPECT [VAR=VALUE]... VICTIM [ARG]...
#   EXPECT: pool  it served allocations
#           pass  it served none: everything went to the driver
#           any   either
row() {
	local name=$1 expect=$2 word victim="" count plain=0 shim=0
	local variables=() options=()
	shift 2
	[[ $name == "$only"* ]] || return
	n_named=$((n_named + 1))
	[ $((n_named % 2)) = "${VS_PART-$((n_named % 2))}" ] || return
	while [ $# -gt 0 ]; do
		word=$1
		shift
		case $word in
		--no-driver) options+=("$word") ;;
		[A-Z]*=*) variables+=("$word") ;;
		*)
			victim=victim_$word
			break
			;;
		esac
	done
	n=$((n + 1))
	if [ ! -x "$build/tests/e2e/$victim" ]; then
		echo "ok $n - $name # SKIP $victim was not built"
		return
	fi
	if [ "${VS_DRIVER-sim}" = real ]; then
		# how the judge judges is nothing to the real one
		word="${options[*]-} ${variables[*]-}"
		case ${word//SIM_JUDGE_MODE/} in
		*SIM_* | *--no-driver*)
			echo "ok $n - $name # SKIP needs the simulator"
			return
			;;
		esac
	fi
	rm -f "$dir"/*
	timeout -k 5 "$seconds" "$here/with-sim" --no-shim ${options+"${options[@]}"} \
		${variables+"${variables[@]}"} "$build/tests/e2e/$victim" "$@" \
		>"$dir/out" 2>"$dir/err" </dev/null || plain=$?
	timeout -k 5 "$seconds" "$here/with-sim" --stats="$dir/stats" \
		${options+"${options[@]}"} ${variables+"${variables[@]}"} \
		"$build/tests/e2e/$victim" "$@" \
		>"$dir/out.shim" 2>"$dir/err.shim" </dev/null || shim=$?
	count=$(served "$dir/stats")
	if [ $plain = 126 ] || [ $plain = 127 ]; then
		echo "not ok $n - $name: cannot be run"
	elif [ $plain != $shim ]; then
		echo "not ok $n - $name: exit $plain without, $shim with"
		tail -n 20 "$dir"/{out,err}{,.shim} | comment
	elif ! cmp -s "$dir/out" "$dir/out.shim"; then
		echo "not ok $n - $name: prints something else"
		diff "$dir/out" "$dir/out.shim" | head -n 20 | comment
	elif ! cmp -s <(addresses "$dir/err") <(addresses "$dir/err.shim"); then
		echo "not ok $n - $name: standard error"
		diff <(addresses "$dir/err") <(addresses "$dir/err.shim") |
			head -n 20 | comment
	elif [ "$expect" = pool ] && [ "$count" = 0 ]; then
		echo "not ok $n - $name: the pool served nothing"
	elif [ "$expect" = pass ] && [ "$count" != 0 ]; then
		echo "not ok $n - $name: the pool served $count, expected none"
	elif [ $plain = 70 ]; then
		echo "not ok $n - $name: the driver is not what the shim relies on"
		grep NOT "$dir/out" | comment
	elif [ "$expect" = pool ] && [ "$plain" = 124 ]; then
		echo "not ok $n - $name: took more than $seconds s"
	else
		echo "ok $n - $name ($count served, exit $plain)"
	fi
}
