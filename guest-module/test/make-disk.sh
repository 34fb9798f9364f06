#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Makes what the tests boot: a Debian with stock tools, its kernel, and an initial file system.
#
# usage: make-disk.sh SCRATCH [backports | KERNEL_TREE]
#
# With a built kernel tree, such as one with debug.config, that kernel is booted instead of Debian's:
#
#     make tinyconfig && scripts/kconfig/merge_config.sh -m .config .../debug.config && make olddefconfig && make
#
# Packages in EXTRA_PACKAGES, separated by commas, are installed, too. SCRATCH gets root/ (by mmdebstrap, as root, unless
# it is there), vmlinuz, initrd.gz, root.ext4 and kernel (its version).
set -euo pipefail
scratch=$1 suite=bookworm from=()
packages=linux-image-amd64,kmod,iproute2,iputils-ping,rdma-core,ibverbs-utils,ibverbs-providers,perftest,rdmacm-utils
packages+=,infiniband-diags,ibacm,opensm,srptools,busybox-static,procps,strace,ethtool${EXTRA_PACKAGES:+,$EXTRA_PACKAGES}
sources=("deb http://deb.debian.org/debian $suite main" "deb http://deb.debian.org/debian-security $suite-security main")
if [[ ${2:-} == backports ]]; then
    sources+=("deb http://deb.debian.org/debian $suite-backports main")
    from=("--aptopt=APT::Default-Release \"$suite-backports\"")
fi
mkdir -p "$scratch"
cd "$scratch"
if [[ ! -d root ]]; then
    mmdebstrap --quiet --mode=root --variant=minbase "${from[@]}" --include="$packages" "$suite" root "${sources[@]}"
fi
if [[ -d ${2:-} ]]; then
    kernel=$(make -s -C "$2" kernelrelease)
    make -s -C "$2" INSTALL_MOD_PATH="$PWD/root" DEPMOD=true modules_install
    chroot root depmod "$kernel"
    cp "$2/arch/x86/boot/bzImage" vmlinuz
else
    kernel=$(ls root/lib/modules)
    cp "root/boot/vmlinuz-$kernel" vmlinuz
fi
echo "$kernel" >kernel

rm -rf initrd
mkdir -p initrd/{bin,dev,proc,sys,root,modules}
cp root/bin/busybox initrd/bin/
for applet in sh mount insmod switch_root sleep cp poweroff mknod; do ln -s busybox "initrd/bin/$applet"; done
touch initrd/modules/order
for module in virtio_pci virtio_blk ext4 crc32c_generic virtio_net virtio_console virtio_rng; do
    chroot root modprobe -S "$kernel" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/root\1/p'
done | awk '!seen[$0]++' | while read -r file; do
    cp "$file" initrd/modules/
    basename "$file" >>initrd/modules/order
done
cat >initrd/init <<'INIT'
#!/bin/sh
mount -t devtmpfs dev /dev
exec </dev/console >/dev/console 2>&1
mount -t proc proc /proc
mount -t sysfs sys /sys
while read -r module; do insmod "/modules/$module"; done </modules/order
until mount -t ext4 -o rw,noatime /dev/vda /root 2>/dev/null; do sleep 0.1; done
for directory in dev proc sys; do mount --move /$directory /root/$directory; done
exec switch_root /root /sbin/test-init
INIT
cat >root/sbin/test-init <<'INIT'
#!/bin/bash
# Runs commands that come through the first virtio-serial port.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /tmp
mkdir -p /dev/shm /dev/pts; mount -t tmpfs shm /dev/shm; mount -t devpts devpts /dev/pts
ip link set lo up
ulimit -l unlimited
cd /root
exec 3<>"$(echo /dev/vport*p1)"
while true; do bash --norc <&3 >&3 2>&1; sleep 1; done
INIT
chmod +x initrd/init root/sbin/test-init
(cd initrd && find . | cpio -o -H newc --quiet | gzip -1) >initrd.gz
rm -f root.ext4
mke2fs -q -t ext4 -d root root.ext4 2500M
echo "kernel $kernel"
