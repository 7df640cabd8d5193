//! The gRPC API `ebb.v1`: protocol definitions and generated code.
//!
//! The API's text of record is `proto/ebb/v1/ebb.proto`, documented field by field. This crate
//! holds what is generated from it and nothing else: messages, [`v1::ebb_client`],
//! [`v1::ebb_server`], and the descriptors for reflection.

mod codec;

/// Package `ebb.v1`. Missing docs stay a warning here, so that a field without a comment in the
/// .proto is noticed.
#[allow(unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("ebb.v1");
}

/// The encoded `FileDescriptorSet` of every .proto file, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/ebb_descriptors.bin"));

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn absent_and_zero_are_told_apart() {
        let zero = v1::SamplingParams {
            temperature: Some(0.0),
            ..Default::default()
        };
        let back =
            v1::SamplingParams::decode(zero.encode_to_vec().as_slice()).expect("own encoding");
        assert_eq!(
            (back.temperature, back.top_p, back.n),
            (Some(0.0), None, None)
        );
    }

    #[test]
    fn descriptors_hold_the_service() {
        let text = String::from_utf8_lossy(FILE_DESCRIPTOR_SET);
        for name in [
            "ebb.v1",
            "Generate",
            "Abort",
            "Tokenize",
            "Detokenize",
            "GetModelInfo",
            "GetServerInfo",
        ] {
            assert!(
                text.contains(name),
                "{name} is missing from the descriptors"
            );
        }
    }
}
