#!/usr/bin/env bash
# Installs what Heddle is built and tested with, and only what is missing. Says nothing when all is there.
#
#   scripts/setup.sh          compiler, stock InfiniBand tools, virtual machines, test runner
#   scripts/setup.sh fuzz     the same, and what fuzzing needs
#
# Made for Debian 12. Elsewhere it names what it misses and ends with status 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(gcc libc6-dev make pkg-config ibsim-utils libumad2sim0 opensm infiniband-diags ibutils librsvg2-bin)
# virtual machines: QEMU and libvirt, and what images are made with
packages+=(apparmor qemu-system-x86 qemu-utils libvirt-daemon libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-clients
    libvirt-dev mmdebstrap genisoimage e2fsprogs busybox-static cpio python3 openssh-client)
cargo_tools=(cargo-nextest)
case "${1:-}" in
    '') ;;
    fuzz)
        packages+=(g++)
        cargo_tools+=(cargo-fuzz)
        ;;
    *)
        echo "setup: what is '$1'? Nothing, or: fuzz" >&2
        exit 2
        ;;
esac

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

# ---- the compiler: never installed from here, as there are several good ways to have it

export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
wanted=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1)
command -v cargo >/dev/null || fail "there is no cargo." \
    "Install Rust $wanted or newer with rustup (https://rustup.rs), then run this again."
version=$(cargo --version)
version=${version#cargo }
version=${version%%[ -]*}
oldest=$(printf '%s\n' "$wanted" "$version" | sort -V | head -n 1)
[[ $oldest == "$wanted" ]] || fail "cargo is $version, Heddle needs $wanted or newer." \
    "Run 'rustup update stable', or install a newer Rust with rustup (https://rustup.rs)."

# ---- packages of the distribution

as_root() {
    if [[ $EUID == 0 ]]; then "$@"; else sudo "$@"; fi
}

# While this file says 101, installing a package starts no service: opensm and libvirtd must never run here by
# themselves.
policy=/usr/sbin/policy-rc.d
policy_state=untouched

forbid_services() {
    if [[ -e $policy ]]; then
        local answer=0
        as_root "$policy" opensm start >/dev/null 2>&1 || answer=$?
        [[ $answer == 101 ]] && return
        as_root mv "$policy" "$policy.before-heddle"
        policy_state=moved
    else
        policy_state=made
    fi
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
}

restore_services() {
    case $policy_state in
        made) as_root rm -f "$policy" ;;
        moved) as_root mv "$policy.before-heddle" "$policy" ;;
    esac
    policy_state=untouched
}

missing_packages() {
    local have
    have=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ' "${packages[@]}" 2>/dev/null || true)"
    for package in "${packages[@]}"; do
        [[ $have == *" installed:$package "* ]] || printf '%s\n' "$package"
    done
}

# Some machines come with a qemu-utils of backports that is newer than any QEMU to be had, and keeps it out. The one of
# the release itself replaces it then.
qemu_downgrade() {
    local installed candidate codename
    [[ " $* " == *" qemu-system-x86 "* ]] || return 0
    installed=$(dpkg-query -W -f '${db:Status-Status} ${Version}' qemu-utils 2>/dev/null) || return 0
    [[ $installed == 'installed '* ]] || return 0
    candidate=$(apt-cache policy qemu-system-x86 | sed -n 's/^ *Candidate: //p')
    [[ -n $candidate && $candidate != '(none)' ]] || return 0
    dpkg --compare-versions "${installed#installed }" gt "$candidate" || return 0
    codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    [[ -z $codename ]] || printf '%s\n' --allow-downgrades "qemu-utils/$codename"
}

install_packages() {
    echo "setup: installing $*"
    [[ $EUID == 0 ]] || command -v sudo >/dev/null || fail "not root, and there is no sudo." \
        "As root: apt-get install $*"
    trap restore_services EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    forbid_services
    # Old lists may still do.
    as_root apt-get update -qq || echo "setup: apt-get update failed; trying with the lists at hand" >&2
    local downgrade
    mapfile -t downgrade < <(qemu_downgrade "$@")
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "$@" "${downgrade[@]}" \
        >/dev/null || fail "apt-get could not install: $*"
    if [[ " $* " == *" opensm "* ]] && command -v update-rc.d >/dev/null; then
        # It is here to be called by tests. A manager that starts at boot would take over a real fabric.
        as_root update-rc.d opensm disable >/dev/null 2>&1 || true
        echo "setup: opensm does not start at boot (update-rc.d opensm enable changes that)"
    fi
    restore_services
    trap - EXIT INT TERM
}

if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
    mapfile -t missing < <(missing_packages)
    [[ ${#missing[@]} == 0 ]] || install_packages "${missing[@]}"
else
    for tool in cc make ibsim opensm ibnetdiscover ibdiagnet rsvg-convert qemu-system-x86_64 qemu-img libvirtd \
        mmdebstrap genisoimage cpio ssh; do
        command -v "$tool" >/dev/null || fail "there is no $tool, and no apt-get to install it with." \
            "On Debian 12 these packages have it all: ${packages[*]}"
    done
fi

# ---- tools that cargo builds

for tool in "${cargo_tools[@]}"; do
    command -v "$tool" >/dev/null && continue
    echo "setup: building $tool (takes minutes, once)"
    cargo install --quiet --locked "$tool" || fail "cargo could not install $tool."
done
