#pragma once
#include "../kitty_page/device.cuh"

template <>
struct ebb::Format<ebb::kKitty25Page> : ebb::KittyPageFormat<2, 0> {};
