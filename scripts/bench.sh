#!/usr/bin/env bash
# Measures Heddle next to the software it is compared with, and rewrites docs/benchmarks.md.
# The page changes only when every measurement came to its end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

heddle=${CARGO_TARGET_DIR:-target}/measured/heddle
page=docs/benchmarks.md

cargo build --profile measured --quiet

package_version() {
    dpkg-query -W -f '${Version}' "$1" 2>/dev/null || echo unknown
}

commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
# The page itself may differ: this run is about to write it.
[[ -z $(git status --porcelain -- . ":!$page" 2>/dev/null) ]] || commit+=" with local changes"
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
memory_gib=$(awk '/^MemTotal/ { printf "%.1f", $2 / 1048576 }' /proc/meminfo)

draft=$(mktemp "$page.XXXXXX")
trap 'rm -f "$draft"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

{
    cat <<END
# Benchmarks

Written by \`make bench\`, which measures Heddle and the software it is compared with on the same machine, one after
the other in every round. Figures of different machines or different runs do not compare; ratios within a run do.

| | |
|---|---|
| date | $(date -u +%Y-%m-%d) |
| commit | $commit |
| processor | ${cpu:-unknown}, $(nproc) cores |
| memory | $memory_gib GiB |
| kernel | $(uname -sr) |
| load when it started | $(cut -d ' ' -f 1 /proc/loadavg) |
| ibsim | $(package_version ibsim-utils) |
| opensm | $(package_version opensm) |

## The emulated fabric

END
    echo "bench: heddle bench sim" >&2
    "$heddle" bench sim
    printf '\n## Bring-up with opensm\n\n'
    echo "bench: heddle bench bring-up" >&2
    "$heddle" bench bring-up
    printf '\n## The subnet manager next to opensm\n\n'
    echo "bench: heddle bench sm" >&2
    "$heddle" bench sm
    printf '\n## What the subnet manager leaves behind\n\n'
    echo "bench: heddle bench judge" >&2
    "$heddle" bench judge
} >"$draft"

chmod 644 "$draft"
mv "$draft" "$page"
echo "bench: wrote $page"
