# Read by scripts that build what is shipped: two builds of a commit by one compiler and one linker give the same
# bytes, in whatever folder. Neither paths nor the time are part of a program then.
export RUSTFLAGS="--remap-path-prefix=$PWD=/plimsoll --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
# C code of dependencies, which has the paths of its files in messages.
export CFLAGS="-ffile-prefix-map=$PWD=/plimsoll -ffile-prefix-map=${CARGO_HOME:-$HOME/.cargo}=/cargo"
# The commit that /version and plimsoll_build_info tell.
export PLIMSOLL_GIT=${PLIMSOLL_GIT-$(scripts/commit.sh)}
