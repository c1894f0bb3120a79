#!/usr/bin/env bash
# Installs the Debian packages relume builds with, where they are missing. Sourced by quickstart.sh and test.sh.
#   ensure_packages PACKAGE...   through apt-get, with sudo where not root; a clear list if neither works

# ocl-icd-opencl-dev: the CMake files of Debian 12's libdnnl-dev look for OpenCL, which the package does not depend on.
RELUME_BUILD_PACKAGES=(g++ cmake ninja-build libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libdnnl-dev ocl-icd-opencl-dev libsentencepiece-dev libxxhash-dev libpcre2-dev libutf8proc-dev)
RELUME_TEST_PACKAGES=(catch2 binutils)
RELUME_CORPUS_PACKAGES=(python3-doc)

ensure_packages() {
  local missing=() package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  echo "installing: ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null 2>&1 && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
      as_root=(sudo)
    else
      echo "error: these Debian packages are missing and there is neither root nor sudo to install them:" >&2
      echo "  apt-get install ${missing[*]}" >&2
      return 2
    fi
  fi
  if ! { "${as_root[@]}" apt-get update -qq && DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >/tmp/relume-apt.$$ 2>&1; then
    tail -n 5 /tmp/relume-apt.$$ >&2
    rm -f /tmp/relume-apt.$$
    echo "error: installing failed; install by hand: apt-get install ${missing[*]}" >&2
    return 2
  fi
  rm -f /tmp/relume-apt.$$
}
