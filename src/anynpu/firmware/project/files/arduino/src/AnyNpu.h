/* The model, its known-answer test and the measuring protocol. */
#ifndef ANYNPU_ARDUINO_H
#define ANYNPU_ARDUINO_H

#ifdef __AVR__
#error "AVR boards copy constants into their RAM, where this model does not fit: take a 32-bit board"
#endif

#include "anynpu_app.h"
#include "anynpu_board.h"
#include "anynpu_kat.h"
#include "anynpu_model.h"

#endif
