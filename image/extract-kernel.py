#!/usr/bin/env python3
"""extract-kernel.py BZIMAGE ELF: extracts the ELF kernel from a bzImage, which QEMU can boot without decompressing it.

Decompression takes six seconds under emulation. The setup header locates the compressed kernel: see
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
    # The uncompressed size follows the compressed kernel; gzip ignores it.
    b"\x1f\x8b": lambda packed: gzip.GzipFile(fileobj=io.BytesIO(packed)).read(),
}


def main(source, target):
    with open(source, "rb") as file:
        image = file.read()
    if image[0x202:0x206] != b"HdrS":
        # "HdrS" is at 0x202 of every bzImage since 1996.
        sys.exit(f"{source} is not a bzImage")
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * SECTOR + offset
    packed = image[start:start + length]
    for magic, unpack in UNPACKERS.items():
        if packed.startswith(magic):
            kernel = unpack(packed)
            break
    else:
        sys.exit(f"{source} must be compressed with xz or gzip; its payload starts with {packed[:6].hex()}")
    if not kernel.startswith(b"\x7fELF"):
        sys.exit(f"{source} does not contain an ELF kernel")
    with open(target, "wb") as file:
        file.write(kernel)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
