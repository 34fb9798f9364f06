#!/usr/bin/env bash
# Measures Heddle next to the software and the schemes it is compared with, and rewrites docs/benchmarks.md (argument
# fabric) and docs/benchmarks-clusters.md (argument clusters); without an argument, both.
# A page is replaced only if all of its measurements succeeded. HEDDLE_BIN names a directory with heddle and heddle-bench,
# and nothing is built then.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bench=${HEDDLE_BIN:-${CARGO_TARGET_DIR:-target}/measured}/heddle-bench
what=${1:-all}
# A trace of jobs in the Standard Workload Format, for `heddle-bench placement`; without it that stream is left out.
trace=${HEDDLE_TRACE:-}

case $what in
    all | fabric | clusters) ;;
    *)
        echo "bench: the argument must be fabric, clusters or all, got $what" >&2
        exit 2
        ;;
esac

[[ -n ${HEDDLE_BIN:-} ]] || cargo build --profile measured --quiet -p heddle -p bench -p umad-preload

package_version() {
    dpkg-query -W -f '${Version}' "$1" 2>/dev/null || echo unknown
}

commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
# Changes of the pages themselves do not count: this run replaces them.
[[ -z $(git status --porcelain -- . ':!docs/benchmarks*.md' 2>/dev/null) ]] || commit+=" with local changes"
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
memory_gib=$(awk '/^MemTotal/ { printf "%.1f", $2 / 1048576 }' /proc/meminfo)

draft=$(mktemp docs/benchmarks.XXXXXX)
trap 'rm -f "$draft"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Prints the machine on which the measurements ran.
machine() {
    cat <<END
| | |
|---|---|
| date | $(date -u +%Y-%m-%d) |
| commit | $commit |
| processor | ${cpu:-unknown}, $(nproc) cores |
| memory | $memory_gib GiB |
| kernel | $(uname -sr) |
| load average at the start | $(cut -d ' ' -f 1 /proc/loadavg) |
END
}

# Prints a section: its title, then the output of the benchmark with the given arguments.
section() {
    printf '\n## %s\n\n' "$1"
    echo "bench: heddle-bench ${*:2}" >&2
    "$bench" "${@:2}"
}

fabric() {
    cat <<END
# Benchmarks

Written by \`make bench\`, which measures Heddle and the software it is compared with on the same machine, one after
the other in every round. Compare ratios within a run; figures of different machines or runs are not comparable.

$(machine)
| ibsim | $(package_version ibsim-utils) |
| opensm | $(package_version opensm) |
END
    section 'The emulated fabric' sim
    section 'Bring-up with opensm' bring-up
    section 'The subnet manager next to opensm' sm
    section 'Takeovers of subnet managers' failover
    section 'Conformance of the subnet manager' judge
    section 'Tenant views' view
}

clusters() {
    cat <<END
# Benchmarks of clusters

Written by \`make bench\`: admission and placement of clusters, CPU time of decisions, and guarantees under
attack. Figures of different machines or different runs do not compare; shares and ratios do.

$(machine)
END
    section 'Admission of clusters at given places' admission
    section 'Placement until the fabric is full' placement ${trace:+--trace "$trace"}
    section 'Planning one more cluster' plan
    section 'Rates that can be guaranteed on a link' sellable
    section 'Guarantees under attack' guarantees
    section 'Tightness of the latency bound' tightness
    section 'Shared adapters, and jobs beside hostile neighbours' shapes
}

# Replaces a page with the output of a function.
write() {
    "$1" >"$draft"
    chmod 644 "$draft"
    mv "$draft" "$2"
    echo "bench: wrote $2"
}

if [[ $what != clusters ]]; then write fabric docs/benchmarks.md; fi
if [[ $what != fabric ]]; then write clusters docs/benchmarks-clusters.md; fi
