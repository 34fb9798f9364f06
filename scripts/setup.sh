#!/usr/bin/env bash
# Installs the packages and tools that building and testing Heddle needs, if they are missing. Prints nothing if all are
# installed.
#
#   scripts/setup.sh          C compiler, stock InfiniBand tools, QEMU and libvirt, test runner
#   scripts/setup.sh fuzz     the same, and the tools for fuzzing
#   scripts/setup.sh audit    the same, and the tool that checks dependencies
#   scripts/setup.sh debug-kernel    the same, the source of Debian's kernel and what building it needs
#
# Written for Debian 12. On systems without apt-get it names a missing tool and exits with status 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(gcc libc6-dev make pkg-config ibsim-utils libumad2sim0 opensm infiniband-diags ibutils librsvg2-bin)
# VMs: QEMU and libvirt, and the tools that build images
packages+=(apparmor qemu-system-x86 qemu-utils libvirt-daemon libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-clients
    libvirt-dev mmdebstrap genisoimage e2fsprogs busybox-static cpio python3 openssh-client)
cargo_tools=(cargo-nextest)
case "${1:-}" in
    '') ;;
    fuzz)
        packages+=(g++)
        cargo_tools+=(cargo-fuzz)
        ;;
    audit) cargo_tools+=(cargo-deny) ;;
    debug-kernel) packages+=(linux-source-6.1 xz-utils bc bison flex libelf-dev libssl-dev) ;;
    *)
        echo "setup: the argument must be fuzz, audit, debug-kernel or absent, got '$1'" >&2
        exit 2
        ;;
esac

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

# ---- the Rust toolchain: checked, but not installed, because there are several good ways to install it

export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
wanted=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1)
command -v cargo >/dev/null || fail "cargo not found." \
    "Install Rust $wanted or newer with rustup (https://rustup.rs), then run this script again."
version=$(cargo --version)
version=${version#cargo }
version=${version%%[ -]*}
oldest=$(printf '%s\n' "$wanted" "$version" | sort -V | head -n 1)
[[ $oldest == "$wanted" ]] || fail "Heddle needs cargo $wanted or newer, got $version." \
    "Run 'rustup update stable', or install a newer Rust with rustup (https://rustup.rs)."

# ---- packages of the distribution

as_root() {
    if [[ $EUID == 0 ]]; then "$@"; else sudo "$@"; fi
}

# While this script exits with status 101, installing a package starts no service: opensm and libvirtd must not be started
# by their installation.
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

# Some machines have a qemu-utils from backports that is newer than any available qemu-system-x86 and conflicts with it. It
# is then replaced by the version of the release.
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
    [[ $EUID == 0 ]] || command -v sudo >/dev/null || fail "installing packages needs root, and sudo is not installed." \
        "Run as root: apt-get install $*"
    trap restore_services EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    forbid_services
    # The existing package lists may still suffice.
    as_root apt-get update -qq || echo "setup: apt-get update failed; using the existing package lists" >&2
    local downgrade
    mapfile -t downgrade < <(qemu_downgrade "$@")
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "$@" "${downgrade[@]}" \
        >/dev/null || fail "apt-get could not install: $*"
    if [[ " $* " == *" opensm "* ]] && command -v update-rc.d >/dev/null; then
        # Tests start opensm themselves. A subnet manager that starts at boot would take over a real fabric.
        as_root update-rc.d opensm disable >/dev/null 2>&1 || true
        echo "setup: disabled the start of opensm at boot (to enable it: update-rc.d opensm enable)"
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
        command -v "$tool" >/dev/null || fail "$tool not found, and there is no apt-get to install it." \
            "On Debian 12, these packages contain all tools: ${packages[*]}"
    done
fi

# ---- tools that cargo builds

for tool in "${cargo_tools[@]}"; do
    command -v "$tool" >/dev/null && continue
    echo "setup: building $tool (takes minutes, only once)"
    cargo install --quiet --locked "$tool" || fail "cargo could not install $tool."
done
