//! How messages are written and read: as tonic's own codec does, but what cannot be read is the
//! sender's fault.
//!
//! tonic answers INTERNAL to a request that does not decode, a text that is not UTF-8 among them.
//! That code is for the server's own faults: operators are paged for it.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstEncoder};

/// Writes messages of type `T` and reads those of type `U`.
#[derive(Debug)]
pub(crate) struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = Reader<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        Reader(PhantomData)
    }
}

/// Reads messages of type `U`.
#[derive(Debug)]
pub(crate) struct Reader<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for Reader<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // prost names the message and the field.
        let refused =
            |error| Status::invalid_argument(format!("the message is not valid: {error}"));
        U::decode(buffer).map(Some).map_err(refused)
    }
}
