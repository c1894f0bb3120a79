#!/usr/bin/env bash
# Both README commands in a fresh root of a Debian release, as a new user has it. Needs root, debootstrap and a network.
#   tools/check_debian.sh bookworm|trixie [DIR]      DIR keeps the root (default: a temporary one, removed at the end)
# Prints the seconds of each command after package installation. Slow (about 20 minutes); not part of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
release=${1:?usage: tools/check_debian.sh bookworm|trixie [DIR]}
root=${2:-$(mktemp -d "/var/tmp/relume-$release-XXXX")}

cleanup() {
  umount "$root/proc" "$root/dev" 2>/dev/null || true
  [ $# -eq 0 ] || true
}
trap 'cleanup; [ -n "${keep:-}" ] || rm -rf "$root"' EXIT
[ $# -ge 2 ] && keep=1

[ -x "$root/usr/bin/apt-get" ] || debootstrap --variant=minbase "$release" "$root" >"$root.log" 2>&1 || { tail -n 20 "$root.log"; exit 1; }
rm -f "$root.log"
cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
# A minimal Debian image leaves documentation out; the corpus is documentation.
rm -f "$root"/etc/dpkg/dpkg.cfg.d/*doc* 2>/dev/null || true
mount --bind /proc "$root/proc"
mount --bind /dev "$root/dev"

rm -rf "$root/root/relume"
mkdir -p "$root/root/relume"
git archive HEAD | tar -x -C "$root/root/relume"
in_root() { chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 bash -c "cd /root/relume && $1"; }

in_root 'source tools/packages.sh && ensure_packages "${RELUME_BUILD_PACKAGES[@]}" "${RELUME_TEST_PACKAGES[@]}" "${RELUME_CORPUS_PACKAGES[@]}"'
in_root '. /etc/os-release; echo "$PRETTY_NAME: $(g++ --version | head -n 1), oneDNN $(dpkg-query -W -f "\${Version}" libdnnl-dev), Catch2 $(dpkg-query -W -f "\${Version}" catch2), fmt $(dpkg-query -W -f "\${Version}" libfmt-dev)"'
start=$SECONDS
in_root 'tools/quickstart.sh'
echo "== quickstart: $((SECONDS - start)) s after package installation"
start=$SECONDS
in_root 'tools/test.sh' | tail -n 8
echo "== tests: $((SECONDS - start)) s"
