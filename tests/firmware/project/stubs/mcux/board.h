void BOARD_InitDebugConsole(void);
