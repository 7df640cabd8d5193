#pragma once
#include "../kitty_page/device.cuh"

template <>
struct ebb::Format<ebb::kKitty12Page> : ebb::KittyPageFormat<1, 0> {};
