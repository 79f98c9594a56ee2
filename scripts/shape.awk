# Reads Rust files and prints what scripts/shape.sh counts: kind, crate, FILE:LINE and a text, with tabs. Lines are as
# rustfmt leaves them: a statement ends at the `;` that closes its brackets. A `let` is a lazy iterator where its last
# call gives one. `map`, `zip` and others that Option has too count after a call that only iterators have (`iter` …),
# else if the name is used as an iterator within 30 lines. `let mut` is a cursor: not counted. Names are followed
# through `use` to the module that has the item.
BEGIN {
    only = " iter iter_mut into_iter values values_mut into_values keys into_keys chars char_indices bytes lines " \
        "split splitn split_whitespace drain windows chunks enumerate flat_map filter_map rev skip skip_while " \
        "take_while map_while step_by peekable cycle chain scan range union intersection difference "
    either = " map filter cloned copied zip flatten inspect take "
    used = "(^|[^a-z_0-9.])(in (&mut )?NAME([^a-z_0-9.(]|$)|NAME[.](collect|sum|any|all|count|fold|for_each|max_by|" \
        "max_by_key|min_by|min_by_key|filter_map|flat_map|enumerate|chain|next|partition|unzip|last)[(:])"
    public = "(pub(\\([^)]*\\))? )?"
}
function has(words, word) { return index(words, " " word " ") > 0 }
function crate_of(id) { sub(/::.*/, "", id); return id }
function parent(id) { sub(/::[^:]*$/, "", id); return id }
function is_test(id) { while (!(id in tests) && id ~ /::/) id = parent(id); return id in tests }
function found(kind, at, text) { finding[++findings] = kind "\t" crate "\t" at "\t" text; found_in[findings] = id }
function refer(path, at) { from[++refs] = id; to[refs] = path; ref_at[refs] = at }
function module_of(file) {
    sub(/^crates\//, "", file); sub(/\/src\//, "/", file); sub(/\.rs$/, "", file); sub(/\/(mod|lib|main)$/, "", file)
    gsub("/", "::", file)
    return file
}
# The line without comments, and `s` for each string; one may go on in the next line.
function code(s,  quote, comment) {
    if (in_string && !sub(/^([^"\\]|\\.)*"/, "s", s)) return ""
    gsub(/'([^'\\]|\\.)'/, "c", s); gsub(/"([^"\\]|\\.)*"/, "s", s)
    quote = index(s, "\""); comment = index(s, "//")
    in_string = quote && (!comment || quote < comment)
    if (in_string) s = substr(s, 1, quote - 1) "s"
    else if (comment) s = substr(s, 1, comment - 1)
    sub(/[ \t]+$/, "", s)
    return s
}
# Whether the last call of an expression gives an iterator: 1, 0, or 2 where that is unknown.
function is_lazy(s,  parts, n, i, name, called, lazy) {
    gsub(/[(][)]/, "@", s)
    while (gsub(/[(][^()\[\]{}]*[)]/, "#", s) + gsub(/\[[^()\[\]{}]*\]|[{][^()\[\]{}]*[}]/, "s", s)) {}
    gsub(/::<[^.]*>/, "", s); gsub(/ /, "", s)
    if (s ~ /^(move)?[|]/ || s !~ /[.][a-z_]+[@#]$/ || s ~ /[.]take@$/) return 0
    n = split(s, parts, ".")
    lazy = parts[1] ~ /^&?#$|iter::/ || parts[1] in bound ? 1 : 2
    for (i = 2; i <= n; i++) {
        name = parts[i]
        called = sub(/[@#].*/, "", name)
        if (has(only, name)) lazy = 1
        if (!called || parts[i] ~ /[?]/ || !has(only either, name)) lazy = 2
    }
    return has(only either, name) ? lazy : 0
}
function end_of_let(s, at, before,  name, mutable, lazy) {
    sub(/^ *let /, "", s); sub(/;$/, "", s); mutable = sub(/^mut /, "", s)
    name = match(s, /^[a-z_0-9]+/) ? substr(s, 1, RLENGTH) : ""
    if (!sub(/^[a-z_0-9]+(: [^=]*)? = */, "", s)) return
    if (before == name && s ~ ("^&?" name " *[.?\\[]")) found("rebindings", at, "let " name)
    lazy = mutable ? 0 : is_lazy(s)
    delete bound[name]; delete unsure[name]
    if (lazy == 1) { found("lazy-iterators", at, "let " name); bound[name] }
    if (lazy == 2) { unsure[name] = at; unsure_since[name] = FNR }
    last = name; last_depth = depth
}
# Notes each path of a `use`, and the name that it gives in this module.
function read_use(prefix, tree, at,  i, c, deep, start, name) {
    gsub(/^ +| +$/, "", tree)
    if ((i = index(tree, "{"))) {
        prefix = prefix substr(tree, 1, i - 1); tree = substr(tree, i + 1, length(tree) - i - 1) ","
        for (start = i = 1; i <= length(tree); i++) {
            c = substr(tree, i, 1); deep += (c == "{") - (c == "}")
            if (c == "," && !deep) { read_use(prefix, substr(tree, start, i - start), at); start = i + 1 }
        }
    } else if (tree != "") {
        name = tree = prefix tree
        sub(/ as .*/, "", tree); sub(/::(self|[*])$/, "", tree)
        if (!sub(/.* as /, "", name)) { name = tree; sub(/.*::/, "", name) }
        alias[id, name] = tree; refer(tree, at)
    }
}
# The module that has what `path` names in module `here`, or nothing where that is another crate.
function resolve(here, path, guard,  parts, n, i, key) {
    n = split(path, parts, "::"); i = 2
    if (parts[1] == "crate") here = crate_of(here)
    else if (parts[1] == "super") here = parent(here)
    else if (parts[1] != "self") i = 1
    for (; i <= n && here != ""; i++) {
        key = here SUBSEP parts[i]
        if (parts[i] == "super") here = parent(here)
        else if ((here "::" parts[i]) in modules) here = here "::" parts[i]
        else if (!(key in alias) || guard > 8 || alias[key] ~ ("^" parts[i] "(::|$)")) return i == 1 ? "" : here
        else here = resolve(here, alias[key], guard + 1)
    }
    return here
}
# Notes what `start` uses, directly or by others.
function reach(start, v,  i, n, next_ones) {
    n = split(edges[v], next_ones, " ")
    for (i = 1; i <= n; i++)
        if (!((start, next_ones[i]) in reached)) { reached[start, next_ones[i]]; reach(start, next_ones[i]) }
}
FNR == 1 {
    id = module_of(FILENAME); crate = crate_of(id); modules[id]
    over = skips = depth = lets = in_string = 0; using = last = ""; split("", unsure); split("", bound)
}
over || FILENAME ~ /\/tests(\/|\.rs$)/ { next }
{
    s = code($0); at = FILENAME ":" FNR; before = depth; counted = s
    if (s ~ /^ *$/) next
    if (s ~ /^ *#\[cfg\((all\()?test/) { skips = 1; skipped_to = depth; next }
    if (skips && s ~ /^mod [a-z_]+ [{]/) { over = 1; next }
    if (skips && match(s, /mod [a-z_0-9]+;/)) tests[id "::" substr(s, RSTART + 4, RLENGTH - 5)]
    depth += gsub(/[(\[{]/, "", counted) - gsub(/[)\]}]/, "", counted)
    if (skips) { skips = depth > skipped_to || s !~ /[;}]$/; next }

    if (match(s, "^ *" public "use ")) { using = substr(s, RLENGTH + 1); use_at = at }
    else if (using != "") using = using s
    else for (rest = s; match(rest, /[a-z_][a-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)+/);
        rest = substr(rest, RSTART + RLENGTH)) refer(substr(rest, RSTART, RLENGTH), at)
    if (sub(/;$/, "", using)) { read_use("", using, use_at); using = "" }

    # The second of two for `#[cfg(…)]` and `#[cfg(not(…))]` is the same type.
    if (!instead && (match(s, "^ *" public "(unsafe )?(struct|enum|trait|union) [A-Z][A-Za-z0-9]*") ||
        !before && match(s, "^" public "type [A-Z][A-Za-z0-9]*"))) {
        name = substr(s, RSTART, RLENGTH); sub(/.* /, "", name)
        type[++types] = crate "::" name; type_in[types] = id; type_at[types] = at
    }
    instead = s ~ /^ *#\[cfg\(not\(/
    for (name in unsure) {
        pattern = used; gsub(/NAME/, name, pattern)
        if (s ~ pattern) found("lazy-iterators", unsure[name], "let " name)
        if (s ~ pattern || FNR - unsure_since[name] > 30) delete unsure[name]
    }
    if (s ~ /^ *let /) {
        base[++lets] = before; text[lets] = ""; let_at[lets] = at; follows[lets] = last_depth == before ? last : ""
    }
    last = ""; sub(/^ +/, " ", s)
    for (i = 1; i <= lets; i++) text[i] = text[i] s
    for (; lets && depth <= base[lets] && (s ~ /;$/ || depth < base[lets]); lets--)
        if (depth == base[lets]) end_of_let(text[lets], let_at[lets], follows[lets])
}
END {
    for (i = 1; i <= findings; i++) if (!is_test(found_in[i])) print finding[i]
    for (i = 1; i <= types; i++) if (!is_test(type_in[i])) {
        name = type[i]; places[name] = places[name] " " type_at[i]
        if (split(places[name], place, " ") > 1) shared[name] = place[1]
    }
    for (name in shared) print "shared-type-names\t" crate_of(name) "\t" shared[name] "\t" name ":" places[name]
    for (i = 1; i <= refs; i++) {
        a = from[i]; b = resolve(a, to[i], 0)
        apart = index(b "::", a "::") != 1 && index(a "::", b "::") != 1
        if (b == "" || !apart || is_test(a) || is_test(b) || (a, b) in edge_at) continue
        edge_at[a, b] = ref_at[i]; edges[a] = edges[a] " " b
    }
    for (a in edges) reach(a, a)
    for (edge in edge_at) {
        split(edge, ends, SUBSEP); a = ends[1]; b = ends[2]
        if ((b, a) in reached) print "uses-in-circles\t" crate_of(a) "\t" edge_at[edge] "\tof " b
    }
}
