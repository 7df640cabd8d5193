//! What follows from the registry's lines: modules, names, lists and dispatch.

/// Makes `FormatId`, and the modules of its folders, of the lines in registry.rs.
macro_rules! formats {
    ($($group:ident [$($family:ident),*] {
        $($variant:ident $name:ident: $gpu:ident $what:ident $($bits:literal)?,)+
    })+) => {
        $(
            mod $group {
                $(mod $family;)*
                $(pub(super) mod $name;)+
            }
        )+

        /// A page format.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum FormatId {
            $($(
                #[doc = concat!("`", stringify!($name), "`; see its folder's README.")]
                $variant,
            )+)+
        }

        impl FormatId {
            /// Every format, in the registry's order.
            pub const ALL: &[FormatId] = &[$($(FormatId::$variant),+),+];

            /// Its name in options, profiles and metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $($(FormatId::$variant => stringify!($name),)+)+
                }
            }

            /// Its folder, from the crate's root.
            pub const fn folder(self) -> &'static str {
                match self {
                    $($(FormatId::$variant => concat!(
                        "src/formats/", stringify!($group), "/", stringify!($name)
                    ),)+)+
                }
            }

            fn codec(self) -> &'static dyn codec::PageFormat {
                match self {
                    $($(FormatId::$variant => &$group::$name::FORMAT,)+)+
                }
            }

            /// What its line says of the GPU.
            #[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
            const fn on_gpu(self) -> gpu::Entry {
                match self {
                    $($(FormatId::$variant => gpu::entry!($gpu $what $($bits)?),)+)+
                }
            }
        }
    };
}

pub(super) use formats;
