#!/usr/bin/env bash
# A kernel object compiled for a wide instruction set must not define weak symbols (inline functions, templates): the linker
# keeps one copy of each name, and could give AVX-512 code to a processor without it.
#   isa_symbols.sh OBJECT...
weak=$(nm -C "$@" | grep -E ' [WVu] ' | grep -v 'DW.ref.__gxx_personality_v0' | sort -u)
[ -z "$weak" ] && exit 0
echo "weak symbols in kernels of a wide instruction set:"
echo "$weak"
exit 1
