#!/usr/bin/env python3
"""extract-kernel.py BZIMAGE ELF: the kernel inside a bzImage, which QEMU boots without unpacking it first.

Unpacking takes six seconds where the machine is emulated. The header says where the packed kernel is: see
Documentation/x86/boot.rst of the kernel, fields setup_sects, payload_offset and payload_length.
"""
import gzip
import io
import lzma
import struct
import sys

SECTOR = 512
UNPACKERS = {
    b"\xfd7zXZ\0": lambda packed: lzma.LZMADecompressor().decompress(packed),
    # The size follows the packed kernel; gzip stops before it.
    b"\x1f\x8b": lambda packed: gzip.GzipFile(fileobj=io.BytesIO(packed)).read(),
}


def main(source, target):
    with open(source, "rb") as file:
        image = file.read()
    if image[0x202:0x206] != b"HdrS":
        # "HdrS" is at 0x202 of every bzImage since 1996.
        sys.exit(f"{source} is no bzImage")
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * SECTOR + offset
    packed = image[start:start + length]
    for magic, unpack in UNPACKERS.items():
        if packed.startswith(magic):
            kernel = unpack(packed)
            break
    else:
        sys.exit(f"{source} is packed in a way that is not known here: it starts with {packed[:6].hex()}")
    if not kernel.startswith(b"\x7fELF"):
        sys.exit(f"{source} holds no ELF kernel")
    with open(target, "wb") as file:
        file.write(kernel)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
