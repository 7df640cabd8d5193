//! Compiles the CUDA kernels ahead of time when feature `cuda` is on; does nothing otherwise.
//!
//! Every `kernels/cuda/**/*.cu` becomes a fat binary that the crate embeds. The build fails on a
//! compiler warning and on a register spill. `EBB_CUDA_ARCHS` (default `80,86,89,90a,ptx`)
//! restricts the targets for a quick loop; `nvcc` is found in `$CUDA_HOME/bin`, then on `PATH`.
//!
//! What the kernels know of the page formats comes from their registry (build/formats.rs).
//!
//! With feature `cuda-emulator` the same files are compiled by the C++ compiler (`$CXX`, else
//! `c++`) for the CPU instead.

#[path = "build/formats.rs"]
mod formats;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, thread};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    let feature = |name| env::var_os(name).is_some();
    let emulator = feature("CARGO_FEATURE_CUDA_EMULATOR");
    if !emulator && !feature("CARGO_FEATURE_CUDA") {
        return;
    }
    println!("cargo:rerun-if-changed=cuda");
    for source in formats::sources() {
        println!("cargo:rerun-if-changed={source}");
    }
    for variable in ["EBB_CUDA_ARCHS", "EBB_EMULATOR_RACES", "CUDA_HOME", "CXX"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    formats::write_headers(&out).expect("OUT_DIR is writable");
    let mut sources = Vec::new();
    find_sources(
        Path::new("cuda"),
        if emulator { &["cu", "cpp"] } else { &["cu"] },
        &mut sources,
    );
    sources.sort();
    if emulator {
        compile_all(&sources, &|source| compile_emulated(source, &out));
        archive(&sources, &out);
    } else {
        let archs = env::var("EBB_CUDA_ARCHS").unwrap_or_else(|_| "80,86,89,90a,ptx".into());
        compile_all(&sources, &|source| compile(source, &out, &archs));
        write_images(&sources, &out);
    }
}

/// Compiles each source on a thread of its own; ends the build if one fails.
fn compile_all(sources: &[PathBuf], compile: &(dyn Fn(&Path) -> Result<(), String> + Sync)) {
    let failures: Vec<String> = thread::scope(|scope| {
        let workers: Vec<_> = sources
            .iter()
            .map(|source| scope.spawn(|| compile(source)))
            .collect();
        workers
            .into_iter()
            .filter_map(|w| w.join().expect("a compiler thread panicked").err())
            .collect()
    });
    for message in &failures {
        eprintln!("{message}");
    }
    assert!(
        failures.is_empty(),
        "some CUDA kernels did not compile cleanly"
    );
}

/// The table of images that the crate includes.
fn write_images(sources: &[PathBuf], out: &Path) {
    let images: String = sources
        .iter()
        .map(|source| {
            let name = name_of(source);
            let path = format!("concat!(env!(\"OUT_DIR\"), \"/{name}.fatbin\")");
            format!("    (\"{name}\", include_bytes!({path})),\n")
        })
        .collect();
    let table = format!(
        "/// Every compiled file: its name and its fat binary.\n\
         static IMAGES: &[(&str, &[u8])] = &[\n{images}];\n"
    );
    fs::write(out.join("images.rs"), table).expect("OUT_DIR is writable");
}

fn compile_emulated(source: &Path, out: &Path) -> Result<(), String> {
    let compiler = env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let mut command = Command::new(&compiler);
    command.args([
        "-x",
        "c++",
        "-std=c++17",
        "-O2",
        "-fPIC",
        "-fno-strict-aliasing",
        "-ffp-contract=off",
        "-Wall",
        "-Wno-unknown-pragmas",
        "-Wno-unused-variable",
    ]);
    // Every access of a kernel calls cuda/emulator/races.cpp, which takes the place of the
    // sanitizer's own library.
    let is_kernel = source.extension().is_some_and(|e| e == "cu");
    if is_kernel && env::var_os("EBB_EMULATOR_RACES").is_some() {
        command.args(["-fsanitize=thread", "-g1"]);
    }
    command.args([
        "-DEBB_EMULATED",
        "-include",
        "cuda/emulator/emulator.h",
        "-c",
    ]);
    command.args(include_paths(out));
    run(
        command.arg(source).arg("-o").arg(object_of(source, out)),
        source,
        &compiler.to_string_lossy(),
    )
}

/// Where included files are looked for: in the crate, for the folders of page formats, and among
/// the generated ones.
fn include_paths(out: &Path) -> [String; 2] {
    ["-I.".to_owned(), format!("-I{}", out.display())]
}

fn object_of(source: &Path, out: &Path) -> PathBuf {
    out.join(format!("{}.o", name_of(source)))
}

/// Links all objects whole: kernels register themselves, nothing refers to them by symbol.
fn archive(sources: &[PathBuf], out: &Path) {
    let library = out.join("libebb_emulator.a");
    let _ = fs::remove_file(&library);
    let mut command = Command::new("ar");
    command
        .arg("rcs")
        .arg(&library)
        .args(sources.iter().map(|s| object_of(s, out)));
    run(&mut command, &library, "ar").unwrap_or_else(|e| panic!("{e}"));
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static:+whole-archive=ebb_emulator");
    println!("cargo:rustc-link-lib=stdc++");
}

fn run(command: &mut Command, what: &Path, program: &str) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|e| format!("cannot run {program}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "{}: {program} failed\n{}",
        what.display(),
        String::from_utf8_lossy(&output.stderr)
    ))
}

fn find_sources(dir: &Path, extensions: &[&str], sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("the folder of kernels exists") {
        let path = entry.expect("the folder of kernels is readable").path();
        if path.is_dir() {
            find_sources(&path, extensions, sources);
        } else if path
            .extension()
            .is_some_and(|e| extensions.iter().any(|x| e == *x))
        {
            sources.push(path);
        }
    }
}

/// `attention/decode.cu` → `attention_decode`.
fn name_of(source: &Path) -> String {
    let relative = source.strip_prefix("cuda").unwrap_or(source);
    let parts: Vec<_> = relative
        .with_extension("")
        .iter()
        .map(|p| p.to_string_lossy().into_owned())
        .collect();
    parts.join("_")
}

fn nvcc() -> PathBuf {
    match env::var_os("CUDA_HOME") {
        Some(home) => Path::new(&home).join("bin/nvcc"),
        None => "nvcc".into(),
    }
}

fn compile(source: &Path, out: &Path, archs: &str) -> Result<(), String> {
    let mut command = Command::new(nvcc());
    command.args([
        "-O3",
        "-std=c++17",
        "-fatbin",
        "--compress-mode=size",
        "-Xptxas",
        "-v,-warn-spills",
        "-DNDEBUG",
    ]);
    command.args(include_paths(out));
    let mut virtual_arch = "80".to_string();
    for arch in archs.split(',').map(str::trim) {
        if arch == "ptx" {
            command.arg(format!(
                "-gencode=arch=compute_{virtual_arch},code=compute_{virtual_arch}"
            ));
        } else {
            command.arg(format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
            if !arch.ends_with('a') {
                virtual_arch = arch.to_string();
            }
        }
    }
    let target = out.join(format!("{}.fatbin", name_of(source)));
    command.arg("-o").arg(&target).arg(source);
    let output = command.output().map_err(|e| {
        format!(
            "cannot run {}: {e}. Install CUDA 13.0, or run \
             `eval \"$(kernels/cuda/setup.sh)\"` first",
            nvcc().display()
        )
    })?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("{}: nvcc failed\n{log}", source.display()));
    }
    let spills =
        |line: &str| line.contains("bytes spill stores") && !line.contains(" 0 bytes spill stores");
    // Matrix instructions that the compiler has wait for each other.
    let serialised = |line: &str| line.contains("wgmma.mma_async instructions are serialized");
    let bad: Vec<&str> = log
        .lines()
        .filter(|l| l.contains("warning") || spills(l) || serialised(l))
        .collect();
    if !bad.is_empty() {
        return Err(format!("{}: {}\n{log}", source.display(), bad.join("\n")));
    }
    fs::write(target.with_extension("log"), &log)
        .map_err(|e| format!("cannot write the compiler's log: {e}"))
}
