#!/usr/bin/env bash
# base.sh ROOT: what the packages of the image lack: the kernel, without installing it, of its modules only those
# that image/modules names, and the driver of InfiniBand adapters. Called by mmdebstrap while packages can still be fetched.
set -euo pipefail
readonly root=$1 here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")

kernel=$(chroot "$root" apt-cache depends --important linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
[[ -n $kernel ]] || { echo 'base: no package linux-image-amd64 names a kernel' >&2; exit 1; }
readonly version=${kernel#linux-image-}

# Installing it would build an initial file system that nobody boots.
mkdir "$root/kernel"
chroot "$root" sh -c "cd /kernel && apt-get -q -o APT::Sandbox::User=root download $kernel && dpkg-deb -x ./*.deb . && rm ./*.deb"
mkdir -p "$root/usr/lib/modules"
mv "$root/kernel/lib/modules/$version" "$root/usr/lib/modules/$version"
mv "$root/kernel/boot/vmlinuz-$version" "$root/boot/vmlinuz"
rm -rf "$root/kernel"
chroot "$root" depmod "$version"

# Paths of all modules that are wanted or needed by those.
readonly wanted=$(sed -n 's/^\(boot\|keep\) //p' "$here/modules")
keep=$(for module in $wanted; do
    chroot "$root" modprobe --set-version "$version" --show-depends "$module"
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u)
readonly keep
find "$root/usr/lib/modules/$version/kernel" -name '*.ko' -printf '/lib/modules/%P\n' |
    sed "s#^/lib/modules/#/lib/modules/$version/kernel/#" | sort | comm -23 - <(printf '%s\n' "$keep") |
    sed "s#^#$root/usr#" | xargs -r rm --
find "$root/usr/lib/modules" -type d -empty -delete

# The driver, built against exactly this kernel; what only the build needs does not stay.
chroot "$root" apt-get -q -y install make "linux-headers-$version"
mkdir "$root/driver"
cp "$here"/../guest-module/{Makefile,*.[ch]} "$root/driver"
chroot "$root" make -s -C /driver KVER="$version"
strip --strip-debug "$root/driver/heddle_hca.ko"
install -D -m 644 "$root/driver/heddle_hca.ko" "$root/usr/lib/modules/$version/updates/heddle_hca.ko"
rm -rf "$root/driver"
chroot "$root" apt-get -q -y purge --auto-remove make "linux-headers-$version"
chroot "$root" depmod "$version"
