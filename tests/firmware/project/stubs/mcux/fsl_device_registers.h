#include "../cmsis/device.h"
