//! Compiles the .proto files without protoc and keeps their descriptors for server reflection.

use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["ebb/v1/ebb.proto"], ["proto"])?;
    let out =
        PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR for build scripts")?);
    std::fs::write(out.join("ebb_descriptors.bin"), descriptors.encode_to_vec())?;
    // Requests that do not decode are the client's fault (src/codec.rs).
    // Maps are ordered so that a message always encodes to the same bytes.
    tonic_prost_build::configure()
        .btree_map(".")
        .codec_path("crate::codec::Codec")
        .compile_fds(descriptors)?;
    Ok(())
}
