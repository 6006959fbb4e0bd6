void BOARD_InitBootPins(void);
