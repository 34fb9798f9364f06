# SPDX-License-Identifier: GPL-2.0
# Prints what gcov -b says of the files of the module, a line for each, and fails unless all branches were taken.
/^File / { split($0, parts, "'"); file = parts[2]; wanted = file ~ /^\.\.\/\.\.\/\.\.\/(packet|wire|portable)\.[ch]$/ }
!wanted { next }
/^Lines executed/ { lines = $0; branches = "none" }
/^Taken at least once/ { branches = $0 }
/^(Creating|$)/ {
	sub(/.*\//, "", file); sub(/.*:/, "", lines); sub(/.*:/, "", branches)
	printf "%-12s lines %-16s branches taken %s\n", file, lines, branches
	seen++
	if (branches !~ /^(100.00%|none)/) missed = 1
	wanted = 0
}
END { exit missed || seen < 4 }
