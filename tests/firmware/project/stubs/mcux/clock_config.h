void BOARD_InitBootClocks(void);
