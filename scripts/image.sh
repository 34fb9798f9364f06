#!/usr/bin/env bash
# Builds an image from which VMs boot, and caches it. The last line of the output is the directory of the image:
#
#   scripts/image.sh              /var/cache/heddle/images/debian-mpi-KEY/
#   scripts/image.sh evaluation   /var/cache/heddle/images/debian-evaluation-KEY/: the same, and the tools of image/packages.evaluation
#       root.ext4  vmlinux  initrd.cpio.gz  image.json
#
# KEY is a digest of the recipe (image/, guest-module/), of heddle-guest and of libheddle_umad.so: the same sources give the same directory,
# and a second run has nothing to do. HEDDLE_IMAGES names another directory. Needs root, or sudo, to create files with other owners.
#
# Debian packages are downloaded once and cached separately: an image with a new heddle-guest takes seconds, not minutes.
set -euo pipefail
readonly self=$(readlink -f "${BASH_SOURCE[0]}")
cd "$(dirname "$self")/.."
export PATH="$PATH:/usr/sbin:/sbin:${CARGO_HOME:-$HOME/.cargo}/bin" LC_ALL=C

readonly images=${HEDDLE_IMAGES:-/var/cache/heddle/images}
readonly triple=x86_64-unknown-linux-gnu
readonly suite=bookworm
# kbuild leaves *.mod.c
mapfile -t driver < <(find guest-module -maxdepth 1 -name Makefile -or -name '*.[ch]' -not -name '*.mod.c' | sort)
readonly driver
readonly free_mib_needed=4096 # for the packages, the unpacked tree and the disk built from it
readonly spare_mib=512        # free space on the disk for a VM to write to

say() {
    printf 'image: %s\n' "$*"
}

fail() {
    printf 'image: %s\n' "$@" >&2
    exit 1
}

check_tools() {
    local missing=() tool
    # Each entry is command:package.
    for tool in mmdebstrap:mmdebstrap mke2fs:e2fsprogs busybox:busybox-static cpio:cpio python3:python3 flock:util-linux; do
        command -v "${tool%:*}" >/dev/null || missing+=("${tool#*:}")
    done
    [[ ${#missing[@]} == 0 ]] || fail "packages are missing: ${missing[*]}" "Run as root: apt-get install ${missing[*]}"
    [[ $(uname -m) == x86_64 ]] || fail "the machine must be x86_64, got $(uname -m)."
}

# ---- heddle-guest: statically linked, because it is the first process and must run in any image
# ---- libheddle_umad.so: preloaded into InfiniBand tools by in-view

built() { # profile file: where cargo leaves a file
    echo "$(realpath -m "${CARGO_TARGET_DIR:-target}")/$triple/$1/$2"
}

build_programs() {
    # Without paths of this machine: every checkout must give the same bytes. With cargo's progress: the first build takes
    # minutes.
    local registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
    local flags="--remap-path-prefix=$PWD=heddle --remap-path-prefix=$registry=crates"
    RUSTFLAGS="-C target-feature=+crt-static $flags" \
        cargo build --locked --profile guest -p guest --bin heddle-guest --target "$triple"
    RUSTFLAGS=$flags cargo build --locked --release -p umad-preload --target "$triple"
}

# ---- digests that name images

digest() { # file ...: a digest of the contents and names
    sha256sum -- "$@" | sha256sum | cut -c -12
}

base_key() {
    digest image/packages image/modules image/base.sh "${driver[@]}"
}

kit_key() { # the base and the packages of the evaluation image
    { base_key; digest image/packages.evaluation; } | sha256sum | cut -c -12
}

image_key() { # variant guest preload
    local recipe other=image/packages.evaluation
    [[ $1 != evaluation ]] || other=''
    shift
    mapfile -t recipe < <(find image -type f -not -path "$other" | sort)
    { digest scripts/image.sh "${driver[@]}" "${recipe[@]}"; cat "$1" "$2" | sha256sum; } | sha256sum | cut -c -12
}

# ---- build steps

work='' fetching=''

remove() { # directory: unmounts what a killed mmdebstrap left mounted there, innermost first, and deletes it
    local place
    awk -v below="$1/" 'index($2, below) == 1 { print $2 }' /proc/self/mounts | sort -r |
        while read -r place; do umount -l "$place" || true; done
    rm -rf --one-file-system "$1"
}

clean_up() {
    local status=$?
    trap - EXIT INT TERM
    if [[ -n $fetching ]] && kill -TERM "$fetching" 2>/dev/null; then
        wait "$fetching" 2>/dev/null || true
    fi
    if [[ -n $work ]]; then
        remove "$work"
        [[ $status == 0 ]] || echo "image: the build failed; its temporary files were removed" >&2
    fi
    exit "$status"
}

make_base() { # target
    local packages sources=/etc/apt/sources.list.d/debian.sources
    packages=$(sed 's/#.*//' image/packages | xargs | tr ' ' ,)
    if [[ ! -e $sources ]]; then
        sources=$work/sources.list
        printf 'deb http://deb.debian.org/debian%s main\n' " $suite" "-security $suite-security" >"$sources"
    fi
    say "downloading and unpacking Debian packages (takes minutes, only once)"
    TMPDIR=$work mmdebstrap --quiet --mode=root --variant=minbase --aptopt='Apt::Install-Recommends "false"' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
        --include="$packages" --customize-hook='image/base.sh "$1"' \
        "$suite" "$work/base.tar" "$sources" >"$work/base.log" 2>&1 &
    # In the background, so that signals are handled at once and not after minutes.
    fetching=$!
    wait "$fetching" || { tail -n 30 "$work/base.log" >&2; fail "mmdebstrap failed."; }
    fetching=''
    rm -f "$images"/.base-*.tar
    mv "$work/base.tar" "$1"
}

unpack() { # tar directory
    mkdir "$2"
    tar --extract --file "$1" --directory "$2" --numeric-owner --xattrs --xattrs-include='*'
}

# Installs further packages in an unpacked base.
add_packages() { # root list
    local root=$1 packages
    packages=$(sed 's/#.*//' "$2" | xargs)
    # Names are resolved as on this machine; the image has its own file, or none.
    [[ ! -e $root/etc/resolv.conf ]] || mv "$root/etc/resolv.conf" "$root/etc/resolv.conf.image"
    cp --dereference /etc/resolv.conf "$root/etc/resolv.conf"
    DEBIAN_FRONTEND=noninteractive chroot "$root" sh -eu -c "
        apt-get -q -o APT::Sandbox::User=root update
        apt-get -q -y -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 --no-install-recommends install $packages
        apt-get clean" >"$work/packages.log" 2>&1 </dev/null ||
        { tail -n 30 "$work/packages.log" >&2; fail "the packages of $2 cannot be installed."; }
    rm "$root/etc/resolv.conf"
    [[ ! -e $root/etc/resolv.conf.image ]] || mv "$root/etc/resolv.conf.image" "$root/etc/resolv.conf"
}

make_kit() { # base target: the base with the packages of the evaluation image
    say "adding the packages of the evaluation image"
    unpack "$1" "$work/kit"
    add_packages "$work/kit" image/packages.evaluation
    rm -rf "$work/kit"/var/lib/apt/lists/*
    tar --create --file "$work/kit.tar" --directory "$work/kit" --numeric-owner --xattrs --xattrs-include='*' .
    rm -rf "$work/kit"
    rm -f "$images"/.kit-*.tar
    mv "$work/kit.tar" "$2"
}

compile_programs() { # root
    local root=$1 build=$1/tmp/build
    mkdir "$build"
    cp image/mpi/*.c image/frames/*.c image/datagrams/*.c image/packets/*.c "$build"
    # With the compiler of the image, as its users would.
    chroot "$root" sh -eu -c '
        cd /tmp/build
        mpicc -O2 -Wall -Wextra -Werror -o /usr/local/bin/mpi-ring ring.c
        mpicc -O2 -Wall -Wextra -Werror -o /usr/local/bin/mpi-pingpong pingpong.c
        mpicc -O2 -Wall -Wextra -Werror -o /usr/local/bin/mpi-bandwidth bandwidth.c
        gcc -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -o /usr/local/bin/frame-send frame.c
        gcc -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -o /usr/local/bin/ud-send datagram.c -libverbs
        gcc -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -o /usr/local/bin/packet-send packet.c'
    ln -s frame-send "$root/usr/local/bin/frame-count"
    ln -s ud-send "$root/usr/local/bin/ud-count"
    ln -s packet-send "$root/usr/local/bin/packet-count"
    rm -r "$build"
}

fill_root() { # root guest preload
    local root=$1 unit
    install -m 755 "$2" "$root/usr/sbin/heddle-guest"
    install -D -m 644 "$3" "$root/usr/lib/heddle/libheddle_umad.so"
    install -m 755 image/in-view "$root/usr/local/bin/in-view"
    install -D -m 644 image/sshd.conf "$root/etc/ssh/sshd_config.d/10-heddle.conf"
    install -D -m 644 image/cloud-init.cfg "$root/etc/cloud/cloud.cfg.d/99-heddle.cfg"
    compile_programs "$root"
    # Every VM generates its own: in an image they would be the same for all tenants.
    rm -f "$root"/etc/ssh/ssh_host_*
    : >"$root/etc/machine-id"
    # It configures the network from the files that cloud-init writes.
    chroot "$root" systemctl --quiet enable systemd-networkd.service
    sed 's/#.*//' image/units | while read -r unit; do
        [[ -z $unit ]] || ln -sf /dev/null "$root/etc/systemd/system/$unit"
    done
    rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/log/* "$root/etc/hostname"
}

make_initrd() { # root target
    local root=$1 tree=$work/initrd version module path command
    version=$(ls "$root/usr/lib/modules")
    mkdir -p "$tree"/{bin,dev,proc,sys,root,modules}
    cp "$(command -v busybox)" "$tree/bin/busybox"
    for command in sh mount insmod sleep switch_root poweroff; do
        ln -s busybox "$tree/bin/$command"
    done
    install -m 755 image/initramfs-init "$tree/init"
    for module in $(sed -n 's/^boot //p' image/modules); do
        chroot "$root" modprobe --set-version "$version" --show-depends "$module"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r path; do
        cp "$root$path" "$tree/modules/"
        basename "$path" >>"$tree/modules/order"
    done
    (cd "$tree" && find . | sort | cpio --quiet --create --format newc --owner 0:0 | gzip -1n) >"$2"
}

make_disk() { # root target
    local mib=$(($(du --summarize --apparent-size --block-size=1M "$1" | cut -f 1) * 5 / 4 + spare_mib))
    # With a journal, because VMs are powered off without a clean shutdown. Without metadata checksums, which cost time in
    # emulated VMs; the disk is a file on a file system with its own checks.
    mke2fs -q -t ext4 -L root -m 0 -J size=16 -O ^metadata_csum -E lazy_itable_init=1 -d "$1" "$2" "${mib}M" >/dev/null
}

make_manifest() { # directory
    python3 - "$1" <<'PYTHON'
import hashlib, json, pathlib, sys

directory = pathlib.Path(sys.argv[1])

def described(name):
    with open(directory / name, "rb") as file:
        return {"file": name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}

manifest = {
    "root": described("root.ext4"),
    "root_format": "raw",
    "kernel": described("vmlinux"),
    "initrd": described("initrd.cpio.gz"),
    # no_timer_check: the kernel tests its timer against a delay loop, and panics if the emulated processor had to wait meanwhile.
    "command_line": "root=/dev/vda rw net.ifnames=0 quiet mitigations=off no_timer_check",
    "infiniband": True,
}
(directory / "image.json").write_text(json.dumps(manifest, indent=2) + "\n")
PYTHON
}

make_image() { # variant target guest preload
    local variant=$1 base free root left
    shift
    # QEMU runs as another user, which must be able to read all files.
    umask 022
    mkdir -p "$images"
    exec 9>"$images/.lock"
    flock --nonblock 9 || { say "waiting for another build of an image"; flock 9; }
    [[ ! -e $1/image.json ]] || return 0
    free=$(df --output=avail --block-size=1M "$images" | tail -n 1 | tr -d ' ')
    ((free >= free_mib_needed)) ||
        fail "building an image needs $free_mib_needed MiB, but $images has only $free MiB free." "Set HEDDLE_IMAGES to another directory."

    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    # This process holds the lock: what is there was left by a killed build.
    for left in "$images"/.making-*; do
        [[ ! -e $left ]] || remove "$left"
    done
    work=$(mktemp -d "$images/.making-XXXXXX")
    chmod 755 "$work"
    base=$images/.base-$(base_key).tar
    [[ -e $base ]] || make_base "$base"
    if [[ $variant == evaluation ]]; then
        local kit
        kit=$images/.kit-$(kit_key).tar
        [[ -e $kit ]] || make_kit "$base" "$kit"
        base=$kit
    fi

    say "building $1"
    root=$work/root
    unpack "$base" "$root"
    mkdir "$work/image"
    fill_root "$root" "$2" "$3"
    make_initrd "$root" "$work/image/initrd.cpio.gz"
    python3 image/extract-kernel.py "$root/boot/vmlinuz" "$work/image/vmlinux"
    rm "$root/boot/vmlinuz"
    make_disk "$root" "$work/image/root.ext4"
    make_manifest "$work/image"
    # Atomic: the image appears complete or not at all.
    mv -T "$work/image" "$1"
}

# ---- main

if [[ ${1:-} == --make && $# == 5 ]]; then
    make_image "${@:2}"
    echo "$3"
    exit
fi
variant=${1:-base}
[[ $# -le 1 && ($variant == base || $variant == evaluation) ]] || fail "the argument must be base, evaluation or absent, got '$*'"
check_tools
build_programs
guest=$(built guest heddle-guest)
preload=$(built release libheddle_umad.so)
name=debian-mpi
[[ $variant == base ]] || name=debian-evaluation
directory=$images/$name-$(image_key "$variant" "$guest" "$preload")
if [[ -e $directory/image.json ]]; then
    echo "$directory"
elif [[ $EUID == 0 ]]; then
    exec "$self" --make "$variant" "$directory" "$guest" "$preload"
else
    command -v sudo >/dev/null || fail "building an image needs root, and sudo is not installed." "Run as root: scripts/image.sh $variant"
    exec sudo HEDDLE_IMAGES="$images" "$self" --make "$variant" "$directory" "$guest" "$preload"
fi
